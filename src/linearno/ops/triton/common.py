"""What every kernel and every launch needs."""

import ctypes
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETER_PROCESSORS = 2  # processors of a device that is a Python loop
LOG2E = tl.constexpr(1.4426950216293335)  # as float32 has it, and what that leaves out
LOG2E_LOW = tl.constexpr(1.9259629911266175e-08)
LN2 = tl.constexpr(0.6931471805599453)
PARTIAL_SUMS = tl.constexpr(4)
MIN_GRAPH_DRIVER = 12030  # the CUDA driver that can capture such launches


@triton.jit
def wait_for_previous_kernel(DEPENDENT: tl.constexpr):
    """The first line of a kernel that was launched `early`: the kernel before it has ended, and the one after
    it may be set up while this one works. Nothing is read or written before."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _round_to_tf32(a):
    """float32 to the nearest tf32; the tensor cores alone would cut the last bits off."""
    bits = a.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def exp(x, EXACT: tl.constexpr = False):
    """tl.exp without the care it takes of results below 1e-38: two instructions instead of five.

    The rounding of x log₂e is an error that grows with x. EXACT makes it good: for float32, where it shows.
    """
    y = x * LOG2E
    if EXACT:
        correction = tl.fma(x, tl.full(x.shape, LOG2E, tl.float32), -y) + x * LOG2E_LOW
        return tl.exp2(y) * (1 + LN2 * tl.where(x > -200, correction, 0.0))
    return tl.exp2(y)


@triton.jit
def exp_shifted(x, shift, EXACT: tl.constexpr = False):
    """exp(x − level): unless it is EXACT, a multiply-add and a power of two."""
    if EXACT:
        return exp(x - shift, True)
    return tl.exp2(x * LOG2E - shift * LOG2E)


@triton.jit
def log(x, PRECISION: tl.constexpr, EXACT: tl.constexpr = False):
    """tl.log; unless it is EXACT, by the one instruction that devices have for it, within 3e-7. Triton's
    interpreter, which "upcast" products tell of, has no instructions."""
    if EXACT or PRECISION == "upcast":
        return tl.log(x)
    log2 = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return log2 * LN2


@triton.jit
def round_to(x, dtype: tl.constexpr, PRECISION: tl.constexpr):
    """x.to(kind). Devices have an instruction that rounds two numbers to bf16; where these are wanted in
    float32 again the compiler would take a slow one for each."""
    if dtype == tl.bfloat16 and PRECISION != "upcast":
        rounded = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=True, pack=2
        )
    else:
        rounded = x.to(dtype)
    return rounded


@triton.jit
def multiply(a, b, addend, PRECISION: tl.constexpr):
    """a b + more with sums in float32. Triton's interpreter has no bf16 product: "upcast" takes its place.

    "blocked" takes a float32 product as several sums: one long sum would round more than PyTorch's. They are
    the same sums for a b and for bᵀ aᵀ, so that scores are the same to the bit on the way forth and back.
    """
    if PRECISION == "upcast":
        product = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif a.dtype != tl.float32:
        product = tl.dot(a, b)
    elif PRECISION == "tf32":
        product = tl.dot(_round_to_tf32(a), _round_to_tf32(b), input_precision="tf32")
    elif PRECISION == "blocked":
        product = tl.zeros([a.shape[0], b.shape[1]], tl.float32)
        one = tl.full(product.shape, 1.0, tl.float32)
        group = tl.arange(0, a.shape[1]) % PARTIAL_SUMS
        for index in tl.static_range(PARTIAL_SUMS):
            if a.numel <= b.numel:
                partial = tl.dot(tl.where((group == index)[None, :], a, 0.0), b, input_precision="ieee")
            else:
                partial = tl.dot(a, tl.where((group == index)[:, None], b, 0.0), input_precision="ieee")
            product = tl.fma(partial, one, product)  # a plain + would join the sums into one again
    else:
        product = tl.dot(a, b, input_precision="ieee")
    return product + addend


@triton.jit
def tile_rows(tile, R, BR: tl.constexpr):
    """Where a tile of rows begins, and how many it has."""
    first_row = tl.cast(tile, tl.int64) * BR
    return first_row, tl.minimum(R - first_row, BR).to(tl.int32)


@triton.jit
def load_rows(ptr, i, k, rows, K: tl.constexpr, BK: tl.constexpr):
    """Numbers k of rows i, zero where there are no more. Row 0 begins at `ptr`: places after it are 32-bit
    numbers. k is a tile's side, or begins at a multiple of it."""
    return load_masked(ptr + i[:, None] * K + k[None, :], i, k, rows, True, K, BK)


@triton.jit
def store_rows(ptr, values, i, k, rows, K: tl.constexpr, BK: tl.constexpr):
    store_masked(ptr + i[:, None] * K + k[None, :], values, i, k, rows, True, K, BK)


@triton.jit
def load_masked(pointers, i, k, rows, LAST: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """What lies at places (i, k), zero outside of the rows and K columns: only the LAST tile has fewer rows
    than its side."""
    if LAST and K % BK == 0:
        return tl.load(pointers, mask=(i < rows)[:, None], other=0.0)
    if LAST:
        return tl.load(pointers, mask=(i < rows)[:, None] & (k < K)[None, :], other=0.0)
    if K % BK == 0:
        return tl.load(pointers)
    return tl.load(pointers, mask=(k < K)[None, :], other=0.0)


@triton.jit
def store_masked(pointers, values, i, k, rows, LAST: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    if LAST and K % BK == 0:
        tl.store(pointers, values, mask=(i < rows)[:, None])
    elif LAST:
        tl.store(pointers, values, mask=(i < rows)[:, None] & (k < K)[None, :])
    elif K % BK == 0:
        tl.store(pointers, values)
    else:
        tl.store(pointers, values, mask=(k < K)[None, :])


@cache
def dependent_launch(device: torch.device) -> dict[str, bool]:
    """How a kernel is launched that takes its place before the one ahead of it has ended, where a device can:
    between kernels of some microseconds the gap would be a third of one's time."""
    supported = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return (
        {"DEPENDENT": True, "launch_pdl": True}
        if supported and _driver_version() >= MIN_GRAPH_DRIVER
        else {"DEPENDENT": False}
    )


def _driver_version() -> int:
    """The version of the CUDA driver, 0 where it does not tell."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


@cache
def processor_count(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETER_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def product_precision(x: Tensor, float32_precision: str = "ieee") -> str:
    """How products are taken: float32 ones as PyTorch's own are, others exactly."""
    if x.device.type != "cuda":
        return "upcast"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else float32_precision


@cache
def power_of_two(size: int) -> int:
    """The smallest that holds `size`. Triton's own takes longer to call than a small kernel to run."""
    return 1 << (size - 1).bit_length()


def pad(size: int) -> int:
    """The side of a tile that holds `size`: a power of two that a product accepts."""
    return max(16, power_of_two(size))
