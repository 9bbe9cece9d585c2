"""Functions shared by all kernels and their launches."""

import ctypes
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETER_PROCESSORS = 2  # multiprocessors assumed for Triton's interpreter
LOG2E = tl.constexpr(1.4426950216293335)  # log₂e in float32
LOG2E_LOW = tl.constexpr(1.9259629911266175e-08)  # log₂e − LOG2E
LN2 = tl.constexpr(0.6931471805599453)
PARTIAL_SUMS = tl.constexpr(4)  # of a "blocked" product
MIN_GRAPH_DRIVER = 12030  # first CUDA driver that captures dependent launches in graphs


@triton.jit
def wait_for_previous_kernel(DEPENDENT: tl.constexpr):
    """First line of a kernel with `dependent_launch`, before any memory access: wait for the previous kernel,
    then let the next one start its setup."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _round_to_tf32(a):
    """Round float32 to the nearest tf32; tensor cores would truncate."""
    bits = a.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def exp(x, EXACT: tl.constexpr = False):
    """exp(x) without subnormal results: two instructions instead of the five of tl.exp.

    EXACT corrects the rounding error of x log₂e, which grows with |x| and matters in float32.
    """
    y = x * LOG2E
    if EXACT:
        correction = tl.fma(x, tl.full(x.shape, LOG2E, tl.float32), -y) + x * LOG2E_LOW
        return tl.exp2(y) * (1 + LN2 * tl.where(x > -200, correction, 0.0))
    return tl.exp2(y)


@triton.jit
def exp_shifted(x, shift, EXACT: tl.constexpr = False):
    """exp(x − shift); unless EXACT, a multiply-add and a power of two."""
    if EXACT:
        return exp(x - shift, True)
    return tl.exp2(x * LOG2E - shift * LOG2E)


@triton.jit
def log(x, PRECISION: tl.constexpr, EXACT: tl.constexpr = False):
    """log(x); unless EXACT or in Triton's interpreter ("upcast"), by one GPU instruction, within 3e-7."""
    if EXACT or PRECISION == "upcast":
        return tl.log(x)
    log2 = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return log2 * LN2


@triton.jit
def round_to(x, dtype: tl.constexpr, PRECISION: tl.constexpr):
    """x.to(dtype), with the GPU instruction that rounds two numbers to bf16: the compiler does not use it if
    the result is converted back to float32."""
    if dtype == tl.bfloat16 and PRECISION != "upcast":
        rounded = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=True, pack=2
        )
    else:
        rounded = x.to(dtype)
    return rounded


@triton.jit
def multiply(a, b, addend, PRECISION: tl.constexpr):
    """a b + addend, accumulated in float32.

    PRECISION: "ieee" or "tf32" products of float32; "upcast" for Triton's interpreter, which has no bf16
    products; "blocked" adds several partial sums in float32, as one long sum rounds more than PyTorch's. The
    partial sums of a b and bᵀ aᵀ agree, so forward and backward scores are equal to the bit.
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
            product = tl.fma(partial, one, product)  # the compiler would merge a plain + into one sum
    else:
        product = tl.dot(a, b, input_precision="ieee")
    return product + addend


@triton.jit
def tile_rows(tile, R, BR: tl.constexpr):
    """The first row of a tile, and its number of rows."""
    first_row = tl.cast(tile, tl.int64) * BR
    return first_row, tl.minimum(R - first_row, BR).to(tl.int32)


@triton.jit
def load_rows(ptr, i, k, rows, K: tl.constexpr, BK: tl.constexpr):
    """Load columns k of rows i of a (rows, K) matrix; zero outside. Offsets are 32-bit; k begins at a
    multiple of BK."""
    return load_masked(ptr + i[:, None] * K + k[None, :], i, k, rows, True, K, BK)


@triton.jit
def store_rows(ptr, values, i, k, rows, K: tl.constexpr, BK: tl.constexpr):
    store_masked(ptr + i[:, None] * K + k[None, :], values, i, k, rows, True, K, BK)


@triton.jit
def load_masked(pointers, i, k, rows, LAST: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """Load (i, k), zero outside of the rows and K columns; only the LAST tile has rows to mask."""
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
    """Launch options for programmatic dependent launch on devices that support it.

    The setup of a kernel, a third of the time of short kernels, then overlaps the previous one.
    """
    supported = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return (
        {"DEPENDENT": True, "launch_pdl": True}
        if supported and _driver_version() >= MIN_GRAPH_DRIVER
        else {"DEPENDENT": False}
    )


def _driver_version() -> int:
    """The version of the CUDA driver; 0 if unknown."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


@cache
def processor_count(device: torch.device) -> int:
    """Number of streaming multiprocessors."""
    if device.type != "cuda":
        return INTERPRETER_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def product_precision(x: Tensor, float32_precision: str = "ieee") -> str:
    """PRECISION of `multiply`: tf32 for float32 if PyTorch allows it, else `float32_precision`."""
    if x.device.type != "cuda":
        return "upcast"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else float32_precision


@cache
def power_of_two(size: int) -> int:
    """The smallest power of two ≥ size; triton.next_power_of_2 takes longer than a small kernel."""
    return 1 << (size - 1).bit_length()


def pad(size: int) -> int:
    """Size of a tile dimension that holds `size`: a power of two, at least 16 for tl.dot."""
    return max(16, power_of_two(size))
