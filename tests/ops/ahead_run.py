"""The real compiler on several threads, without a device: `python ahead_run.py`, not under its interpreter.

Writes the kernels that were loaded while they were compiled ahead, and how many more were when they were
launched.
"""

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from linearno.ops.ahead import compile_ahead
from linearno.ops.kernels.adam import adam_step

LOADED: list[str] = []


class Utils:
    def load_binary(self, name, *_):
        LOADED.append(name)
        return 1, 1, 32, 0, 1024  # module, function, registers, spills, threads

    def get_device_properties(self, _):
        return {"max_shared_mem": 2**17}


class Device:
    """As much of a driver as compiling for an H200 and a launch into the void ask of one."""

    utils = Utils()

    def get_current_device(self):
        return 0

    def get_current_stream(self, _):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, *_):
        return lambda *_: None


def work():
    for size in (4096, 4096, 4097):
        w, grad, first, second = (torch.zeros(size) for _ in range(4))
        adam_step(w, grad, first, second, torch.ones(5), clip=1.0, eps=1e-8, decay=0.0, decoupled=True)


if __name__ == "__main__":
    driver.set_active(Device())
    compile_ahead(work, torch.device("cuda"))
    sys.stdout.write(" ".join(sorted(LOADED)) + "\n")
    before = len(LOADED)
    work()
    sys.stdout.write(f"{len(LOADED) - before}\n")
