"""What runs in the reader process: mesh files to plain arrays, and back.

Readers written in C may crash, hang or ask for all memory when a file is damaged; here that ends the reader
process and no other. These modules import NumPy and `linearno.core.errors`, PyVista where a file needs it,
and never PyTorch: the process starts in a fraction of a second.
"""
