"""A fake Triton driver: compiles for an H200 and ignores launches."""

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

LOADED_KERNELS: list[str] = []


class Utils:
    def load_binary(self, name, *_):
        LOADED_KERNELS.append(name)
        return 1, 1, 32, 0, 1024  # module, function, registers, spills, threads

    def get_device_properties(self, _):
        return {"max_shared_mem": 232448}


class Driver:
    utils = Utils()

    def get_current_device(self):
        return 0

    def get_current_stream(self, _):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, *_):
        return lambda *_: None


driver.set_active(Driver())
