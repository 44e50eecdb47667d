"""Kernels of our own for what libraries are slow at; where Triton does not work, PyTorch's do the work."""
