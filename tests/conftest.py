"""One BLAS thread a worker: tests run on all cores already, and BLAS threads that wait for a core spin."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before anything imports NumPy

from hypothesis import settings

settings.register_profile("default", deadline=None)  # times belong to benchmarks
settings.load_profile("default")
