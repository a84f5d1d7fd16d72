"""The GPU without models: inline PTX, kernels from Python source to cubin, launches, memory, graphs, device queries.

Knows nothing of Qwen, artifacts or requests. Importing this package touches no driver and no compiler; what needs the
`cuda` extra or a GPU says so, with one `NInferError`, when it is used.
"""
