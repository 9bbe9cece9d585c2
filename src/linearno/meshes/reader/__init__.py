"""Modules of the reader process: convert mesh files to plain arrays and back.

Readers written in C may crash, hang or exhaust memory on damaged files, which then only ends the reader
process. These modules import NumPy and `linearno.core.errors`, PyVista only if a file needs it, and never
PyTorch, so that the process starts in a fraction of a second.
"""
