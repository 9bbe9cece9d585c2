"""Fused kernels in Triton. Only this package imports triton, when the first kernel runs."""
