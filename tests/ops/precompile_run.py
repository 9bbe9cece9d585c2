"""The real compiler on several threads, without a device: `python precompile_run.py`, not interpreted.

Writes the kernels that were loaded while they were compiled ahead, and how many more were when they were
launched.
"""

import sys

import torch
from no_device import LOADED

from linearno.ops.precompile import compile_ahead
from linearno.ops.triton.adam import adam_step


def work():
    for size in (4096, 4096, 4097):
        weight, grad, first, second = (torch.zeros(size) for _ in range(4))
        settings = torch.ones(5)
        adam_step(weight, grad, first, second, settings, clip=1.0, eps=1e-8, decay=0.0, decoupled=True)


if __name__ == "__main__":
    compile_ahead(work, torch.device("cuda"))
    sys.stdout.write(" ".join(sorted(LOADED)) + "\n")
    before = len(LOADED)
    work()
    sys.stdout.write(f"{len(LOADED) - before}\n")
