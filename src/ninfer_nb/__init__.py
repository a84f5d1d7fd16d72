"""ninfer_nb: LLM inference for `.ninfer` artifacts, every GPU kernel a numba-cuda function."""

__version__ = "0.1.0"
