"""Fused kernels in Triton. Only this room imports triton, and only when a kernel is asked for."""
