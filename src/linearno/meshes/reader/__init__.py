"""What runs in a process of its own, beside the main one: mesh files to plain arrays, and back.

Readers written in C may crash, hang or ask for all memory when a file is damaged; here that ends this process
and no other. So the modules of this folder import each other and nothing else of linearno: the process starts
in half a second, and what it hands over is numbers and words, never objects.
"""
