"""Kernel families, one file each. Kernels know nothing of models: addresses, sizes and static parameters in."""
