"""Linear, GELU, Linear in one kernel. Axes: R rows, K inputs, J hidden, L outputs.

The hidden layer is computed in chunks and stored before GELU for the backward pass, which uses cuBLAS for its
products, with weight gradients on a side stream, and one kernel for the gradient of GELU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.side_streams import ParameterUses, run_on_side_stream
from linearno.ops.triton.common import (
    dependent_launch,
    load_rows,
    multiply,
    pad,
    power_of_two,
    processor_count,
    product_precision,
    round_to,
    store_rows,
    tile_rows,
    wait_for_previous_kernel,
)
from linearno.ops.triton.norm import PREFETCH_STAGES, column_sums, sum_rows
from linearno.ops.weight_cache import cast_weight

ERF_SLOPE = tl.constexpr(0.3275911 * 0.7071067811865476)  # p / √2 of Abramowitz and Stegun 7.1.26
BELL_EXPONENT = tl.constexpr(-0.5 * 1.4426950408889634)  # exp(−z²/2) = 2^(BELL_EXPONENT z²)
NORMAL_DENSITY = tl.constexpr(0.3989422804014327)  # 1 / √(2π)


@triton.jit
def _normal_tail(z):
    """The normal CDF Φ(−|z|), and exp(−z²/2).

    Abramowitz and Stegun 7.1.26, within 2e-7: far below the rounding of z to bf16. The reciprocal is a
    squared rsqrt: two instructions, where a division takes nine.
    """
    bell = tl.exp2(z * z * BELL_EXPONENT)
    root = tl.rsqrt(1 + tl.abs(z) * ERF_SLOPE)
    t = root * root
    series = 0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    return t * series * bell, bell


@triton.jit
def gelu(z):
    """z Φ(z) = max(z, 0) − |z| Φ(−|z|)."""
    tail, _ = _normal_tail(z)
    return tl.maximum(z, 0.0) - tl.abs(z) * tail


@triton.jit
def gelu_and_derivative(z):
    """z Φ(z) and Φ(z) + z exp(−z²/2) / √(2π)."""
    tail, bell = _normal_tail(z)
    cdf = tl.where(z < 0, tail, 1 - tail)
    return z * cdf, cdf + z * (NORMAL_DENSITY * bell)


@triton.jit
def _mlp(
    x_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, z_ptr, out_ptr, R,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, WRITE_HIDDEN: tl.constexpr, HIDDEN_GIVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr, FIRST_PRECISION: tl.constexpr, PRECISION: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out = GELU(x w1ᵀ + b1) w2ᵀ + b2 for rows (R, K) → (R, L); z is the hidden layer before GELU.

    Each program loops over tiles of rows. If all J hidden columns fit one chunk, it loads the weights once
    and prefetches the next tile. With HIDDEN_GIVEN z is an input.
    """
    wait_for_previous_kernel(DEPENDENT)
    i, o = tl.arange(0, BR), tl.arange(0, BL)
    if J <= BJ:
        w1, w2 = load_weights(w1_ptr, w2_ptr, 0, x_ptr, out_ptr, K, J, L, HIDDEN_GIVEN, BK, BJ, BL)
        b1, x = load_bias(b1_ptr, 0, J, BJ), _load_inputs(x_ptr, tl.program_id(0), R, K, HIDDEN_GIVEN, BR, BK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, BR), tl.num_programs(0), num_stages=1):
        first_row, rows = tile_rows(tile, R, BR)
        out = tl.zeros([BR, BL], tl.float32)
        z_row = z_ptr + first_row * J
        if J <= BJ:
            next_x = _load_inputs(x_ptr, tile + tl.num_programs(0), R, K, HIDDEN_GIVEN, BR, BK)
            out = add_hidden_chunk(
                x, w1, w2, out, b1, z_row, i, rows, 0, out_ptr, J, WRITE_HIDDEN, HIDDEN_GIVEN,
                FIRST_PRECISION, PRECISION, BJ,
            )  # fmt: skip
            x = next_x
        else:
            x = _load_inputs(x_ptr, tile, R, K, HIDDEN_GIVEN, BR, BK)
            for start in range(0, J, BJ):
                w1, w2 = load_weights(
                    w1_ptr, w2_ptr, start, x_ptr, out_ptr, K, J, L, HIDDEN_GIVEN, BK, BJ, BL
                )
                b1 = load_bias(b1_ptr, start, J, BJ)
                out = add_hidden_chunk(
                    x, w1, w2, out, b1, z_row, i, rows, start, out_ptr, J, WRITE_HIDDEN, HIDDEN_GIVEN,
                    FIRST_PRECISION, PRECISION, BJ,
                )  # fmt: skip
        if HAS_BIAS:
            out += tl.load(b2_ptr + o, mask=o < L, other=0.0)[None, :]
        store_rows(out_ptr + first_row * L, out, i, o, rows, L, BL)


@triton.jit
def _load_inputs(
    x_ptr, tile, R, K: tl.constexpr, HIDDEN_GIVEN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr
):
    """Load a tile of rows; unused with HIDDEN_GIVEN."""
    if HIDDEN_GIVEN:
        x = 0.0
    else:
        first_row, rows = tile_rows(tile, R, BR)
        x = load_rows(x_ptr + first_row * K, tl.arange(0, BR), tl.arange(0, BK), rows, K, BK)
    return x


@triton.jit
def load_bias(b1_ptr, start, J: tl.constexpr, BJ: tl.constexpr):
    j = start + tl.arange(0, BJ)
    return tl.load(b1_ptr + j, mask=j < J, other=0.0)


@triton.jit
def load_weights(
    w1_ptr, w2_ptr, start, x_ptr, out_ptr,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, HIDDEN_GIVEN: tl.constexpr,
    BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Weights (K, j) and (j, L) of a chunk of hidden columns."""
    k, j, o = tl.arange(0, BK), start + tl.arange(0, BJ), tl.arange(0, BL)
    w2 = tl.load(w2_ptr + o[None, :] * J + j[:, None], mask=(o < L)[None, :] & (j < J)[:, None], other=0.0)
    w2 = w2.to(out_ptr.dtype.element_ty)
    if HIDDEN_GIVEN:
        w1 = w2
    else:
        w1 = tl.load(
            w1_ptr + j[None, :] * K + k[:, None], mask=(j < J)[None, :] & (k < K)[:, None], other=0.0
        )
        w1 = w1.to(x_ptr.dtype.element_ty)
    return w1, w2


@triton.jit
def add_hidden_chunk(
    x, w1, w2, out, b1, z_ptr, i, rows, start, out_ptr,
    J: tl.constexpr, WRITE_HIDDEN: tl.constexpr, HIDDEN_GIVEN: tl.constexpr, FIRST_PRECISION: tl.constexpr,
    PRECISION: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """`out` plus the contribution of a chunk of hidden columns; row i = 0 of z begins at `z_ptr`."""
    dtype = out_ptr.dtype.element_ty
    j = start + tl.arange(0, BJ)
    if HIDDEN_GIVEN:
        z = load_rows(z_ptr, i, j, rows, J, BJ)
    else:
        z = round_to(multiply(x, w1, b1[None, :], FIRST_PRECISION), dtype, FIRST_PRECISION)
    if WRITE_HIDDEN:
        store_rows(z_ptr, z, i, j, rows, J, BJ)
    return multiply(gelu(z.to(tl.float32)).to(dtype), w2, out, PRECISION)


@triton.jit
def _linear(
    x_ptr, w_ptr, b_ptr, z_ptr, R, K: tl.constexpr, J: tl.constexpr, PRECISION: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """z = x wᵀ + b for one tile of rows and columns per program; tiles of the same rows are adjacent."""
    chunks: tl.constexpr = (J + BJ - 1) // BJ
    r = ((tl.program_id(0) // chunks) * BR + tl.arange(0, BR)).to(tl.int64)
    k, j = tl.arange(0, BK), (tl.program_id(0) % chunks) * BJ + tl.arange(0, BJ)
    rows, columns = (r < R)[:, None], (j < J)[None, :]
    x = tl.load(x_ptr + r[:, None] * K + k[None, :], mask=rows & (k < K)[None, :], other=0.0)
    w = tl.load(w_ptr + j[None, :] * K + k[:, None], mask=columns & (k < K)[:, None], other=0.0)
    z = multiply(x, w, tl.load(b_ptr + j, mask=j < J, other=0.0)[None, :], PRECISION)
    tl.store(z_ptr + r[:, None] * J + j[None, :], z, mask=rows & columns)


@triton.jit
def _gelu_back(
    z_ptr, grad_ptr, hidden_ptr, part_ptr, R, J: tl.constexpr,
    BR: tl.constexpr, BJ: tl.constexpr, PREFETCH_STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """grad ← grad · GELU′(z) in place, hidden = GELU(z), and partial sums of grad over rows for the bias."""
    wait_for_previous_kernel(DEPENDENT)
    j = tl.program_id(1) * BJ + tl.arange(0, BJ)
    d_bias = tl.zeros([BR, BJ], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, BR), tl.num_programs(0), num_stages=PREFETCH_STAGES):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        inside = (r < R)[:, None] & (j < J)[None, :]
        index = r[:, None] * J + j[None, :]
        z = tl.load(z_ptr + index, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + index, mask=inside, other=0.0).to(tl.float32)
        hidden, derivative = gelu_and_derivative(z)
        grad *= derivative
        d_bias += grad
        tl.store(grad_ptr + index, grad, mask=inside)
        tl.store(hidden_ptr + index, hidden, mask=inside)
    tl.store(part_ptr + tl.program_id(0) * J + j, tl.sum(d_bias, axis=0), mask=j < J)


def _tile_settings(rows: int, w2: Tensor, chunk: int) -> dict[str, int]:
    """Tile sizes tuned on an H200; smaller tiles if there are too few to fill the device."""
    outputs, hidden = w2.shape
    is_bf16 = w2.dtype == torch.bfloat16
    tile = 64 if is_bf16 else 32
    while tile > 16 and rows < tile * processor_count(w2.device):
        tile //= 2
    return {
        "BR": tile,
        "BJ": min(pad(hidden), chunk if is_bf16 else 32),
        "BL": pad(outputs),
        "num_warps": 4,
        "num_stages": 3 if is_bf16 else 1,
    }


def mlp_forward(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor | None, keep_hidden: bool
) -> tuple[Tensor, Tensor]:
    """Output (R, L) and hidden layer before GELU (R, J; empty unless `keep_hidden`) in the dtype of w2.

    If x has a wider dtype than w2, the first product is tf32. For more than 128 bf16 outputs a separate
    kernel computes it: one tile cannot hold both weights.
    """
    (rows, inputs), (outputs, hidden) = x.shape, w2.shape
    precision, same_dtype = product_precision(x), x.dtype == w2.dtype
    first_precision = precision if same_dtype or precision == "upcast" else "tf32"
    hidden_given = outputs > 128 and w2.dtype == torch.bfloat16
    if hidden_given:
        z = hidden_layer(x, w1, b1, w2.dtype, first_precision)
    else:
        z = x.new_empty(rows if keep_hidden else 0, hidden, dtype=w2.dtype)
    chunk = 64 if hidden_given or (not same_dtype and inputs <= 64) else 32  # if there are several chunks
    tile = _tile_settings(
        rows, w2, chunk=128 if same_dtype and max(inputs, hidden, outputs) <= 128 else chunk
    )
    programs = -(-rows // tile["BR"])
    if tile["BJ"] >= hidden:  # weights are loaded once per program: few programs with many rows each
        programs = min(programs, 2 * processor_count(x.device))
    out = x.new_empty(rows, outputs, dtype=w2.dtype)
    _mlp[(programs,)](
        x, w1, b1, w2, b1 if b2 is None else b2, z, out, rows,
        inputs, hidden, outputs, keep_hidden and not hidden_given, hidden_given, b2 is not None,
        first_precision, precision, BK=pad(inputs), **tile, **dependent_launch(x.device),
    )  # fmt: skip
    return out, z if keep_hidden else z.new_empty(0)


def hidden_layer(x: Tensor, w: Tensor, b: Tensor, dtype: torch.dtype, precision: str) -> Tensor:
    """x wᵀ + b in `dtype`: by cuBLAS, or by a kernel if x has a wider dtype."""
    if x.dtype == dtype:
        return torch.addmm(cast_weight(b, dtype), x, w.mT)
    (rows, inputs), hidden = x.shape, len(w)
    use_large_tile = inputs <= 128  # tiles of wider rows would not fit shared memory
    tile = {
        "BR": 128 if use_large_tile else 64,
        "BK": pad(inputs),
        "BJ": min(pad(hidden), 256 if use_large_tile else 128),
    }
    z = x.new_empty(rows, hidden, dtype=dtype)
    programs = -(-rows // tile["BR"]) * -(-hidden // tile["BJ"])
    _linear[(programs,)](
        x, w, b, z, rows, inputs, hidden, precision, **tile, num_warps=8 if use_large_tile else 4
    )
    return z


def mlp_backward(
    x: Tensor, w1: Tensor, w2: Tensor, z: Tensor, d_out: Tensor, needs_d_x: bool, has_bias: bool,
    uses: ParameterUses = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of x (None unless `needs_d_x`), w1, b1, w2 and, if `has_bias`, b2."""
    d_out = d_out.to(z.dtype)
    d_z = d_out @ w2
    hidden, parts = gelu_backward_(z, d_z)
    d_parameters = run_on_side_stream(
        lambda: (
            *weight_gradients(d_z, x.to(z.dtype), False),
            sum_rows(parts),
            *weight_gradients(d_out, hidden, has_bias),
        ),
        *(d_z, x, d_out, hidden, parts),
        uses=uses,
    )
    return (d_z.to(w1.dtype) @ w1).to(x.dtype) if needs_d_x else None, *d_parameters


def gelu_backward_(z: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """GELU(z) and partial column sums of d_z; overwrites `grad`, the gradient of GELU(z), with d_z."""
    rows, columns = z.shape
    block_columns = min(128, power_of_two(columns))
    block_rows = 512 // block_columns
    column_blocks = -(-columns // block_columns)
    programs = min(-(-rows // block_rows), -(-10 * processor_count(z.device) // column_blocks))
    hidden, parts = torch.empty_like(z), z.new_empty(programs, columns, dtype=torch.float32)
    _gelu_back[(programs, column_blocks)](
        z, grad, hidden, parts, rows, columns, block_rows, block_columns, PREFETCH_STAGES, num_warps=1,
        **dependent_launch(z.device),
    )  # fmt: skip
    return hidden, parts


def weight_gradients(d_out: Tensor, x: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    """d_outᵀ x (L, K) in float32 and, if `has_bias`, the column sums of d_out."""
    if d_out.device.type == "cuda" and d_out.dtype == x.dtype == torch.bfloat16:
        d_weight = torch.mm(d_out.mT, x, out_dtype=torch.float32)
    else:
        d_weight = d_out.float().mT @ x.float()
    return (d_weight, column_sums(d_out)) if has_bias else (d_weight,)
