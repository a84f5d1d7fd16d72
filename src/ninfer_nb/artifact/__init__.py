"""The `.ninfer` file: container, numeric formats, storage layouts, and the tools that read and write it."""
