"""What every kernel and every launch needs."""

import ctypes
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = 2  # processors of a device that is a Python loop
LOG2E = tl.constexpr(1.4426950216293335)  # as float32 has it, and what that leaves out
LOG2E_REST = tl.constexpr(1.9259629911266175e-08)
LN2 = tl.constexpr(0.6931471805599453)
SUMS = tl.constexpr(4)
IN_GRAPHS = 12030  # the CUDA driver that can capture such launches


@triton.jit
def follow(EARLY: tl.constexpr):
    """The first line of a kernel that was launched `early`: the kernel before it has ended, and the one after
    it may be set up while this one works. Nothing is read or written before."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _round(a):
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
        rest = tl.fma(x, tl.full(x.shape, LOG2E, tl.float32), -y) + x * LOG2E_REST
        return tl.exp2(y) * (1 + LN2 * tl.where(x > -200, rest, 0.0))
    return tl.exp2(y)


@triton.jit
def exp_above(x, level, EXACT: tl.constexpr = False):
    """exp(x − level): unless it is EXACT, a multiply-add and a power of two."""
    if EXACT:
        return exp(x - level, True)
    return tl.exp2(x * LOG2E - level * LOG2E)


@triton.jit
def log(x, PRODUCT: tl.constexpr, EXACT: tl.constexpr = False):
    """tl.log; unless it is EXACT, by the one instruction that devices have for it, within 3e-7. Triton's
    interpreter, which "wide" products tell of, has no instructions."""
    if EXACT or PRODUCT == "wide":
        return tl.log(x)
    power = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return power * LN2


@triton.jit
def round_to(x, kind: tl.constexpr, PRODUCT: tl.constexpr):
    """x.to(kind). Devices have an instruction that rounds two numbers to bf16; where these are wanted in
    float32 again the compiler would take a slow one for each."""
    if kind == tl.bfloat16 and PRODUCT != "wide":
        rounded = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=True, pack=2
        )
    else:
        rounded = x.to(kind)
    return rounded


@triton.jit
def multiply(a, b, more, PRODUCT: tl.constexpr):
    """a b + more with sums in float32. Triton's interpreter has no bf16 product: "wide" takes its place.

    "careful" takes a float32 product as several sums: one long sum would round more than PyTorch's. They are
    the same sums for a b and for bᵀ aᵀ, so that scores are the same to the bit on the way forth and back.
    """
    if PRODUCT == "wide":
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif a.dtype != tl.float32:
        total = tl.dot(a, b)
    elif PRODUCT == "tf32":
        total = tl.dot(_round(a), _round(b), input_precision="tf32")
    elif PRODUCT == "careful":
        total = tl.zeros([a.shape[0], b.shape[1]], tl.float32)
        one = tl.full(total.shape, 1.0, tl.float32)
        own = tl.arange(0, a.shape[1]) % SUMS
        for part in tl.static_range(SUMS):
            if a.numel <= b.numel:
                here = tl.dot(tl.where((own == part)[None, :], a, 0.0), b, input_precision="ieee")
            else:
                here = tl.dot(a, tl.where((own == part)[:, None], b, 0.0), input_precision="ieee")
            total = tl.fma(here, one, total)  # a plain + would join the sums into one again
    else:
        total = tl.dot(a, b, input_precision="ieee")
    return total + more


@triton.jit
def tile_of(tile, R, BR: tl.constexpr):
    """Where a tile of rows begins, and how many it has."""
    first = tl.cast(tile, tl.int64) * BR
    return first, tl.minimum(R - first, BR).to(tl.int32)


@triton.jit
def load_rows(ptr, i, k, rows, K: tl.constexpr, BK: tl.constexpr):
    """Numbers k of rows i, zero where there are no more. Row 0 begins at `ptr`: places after it are 32-bit
    numbers. k is a tile's side, or begins at a multiple of it."""
    return load_inside(ptr + i[:, None] * K + k[None, :], i, k, rows, True, K, BK)


@triton.jit
def store_rows(ptr, values, i, k, rows, K: tl.constexpr, BK: tl.constexpr):
    store_inside(ptr + i[:, None] * K + k[None, :], values, i, k, rows, True, K, BK)


@triton.jit
def load_inside(place, i, k, rows, LAST: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """What lies at places (i, k), zero outside of the rows and K columns: only the LAST tile has fewer rows
    than its side."""
    if LAST and K % BK == 0:
        return tl.load(place, mask=(i < rows)[:, None], other=0.0)
    if LAST:
        return tl.load(place, mask=(i < rows)[:, None] & (k < K)[None, :], other=0.0)
    if K % BK == 0:
        return tl.load(place)
    return tl.load(place, mask=(k < K)[None, :], other=0.0)


@triton.jit
def store_inside(place, values, i, k, rows, LAST: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    if LAST and K % BK == 0:
        tl.store(place, values, mask=(i < rows)[:, None])
    elif LAST:
        tl.store(place, values, mask=(i < rows)[:, None] & (k < K)[None, :])
    elif K % BK == 0:
        tl.store(place, values)
    else:
        tl.store(place, values, mask=(k < K)[None, :])


@cache
def early(device: torch.device) -> dict[str, bool]:
    """How a kernel is launched that takes its place before the one ahead of it has ended, where a device can:
    between kernels of some microseconds the gap would be a third of one's time."""
    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if able and _driver() >= IN_GRAPHS else {"EARLY": False}


def _driver() -> int:
    """The version of the CUDA driver, 0 where it does not tell."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


@cache
def processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED
    return torch.cuda.get_device_properties(device).multi_processor_count


def product_precision(x: Tensor, exact: str = "ieee") -> str:
    """How products are taken: float32 ones as PyTorch's own are, others exactly."""
    if x.device.type != "cuda":
        return "wide"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else exact


@cache
def power_of_two(size: int) -> int:
    """The smallest that holds `size`. Triton's own takes longer to call than a small kernel to run."""
    return 1 << (size - 1).bit_length()


def pad(size: int) -> int:
    """The side of a tile that holds `size`: a power of two that a product accepts."""
    return max(16, power_of_two(size))
