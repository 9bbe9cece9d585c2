"""Linear, GELU, Linear in one kernel. Axes: R rows, K inputs, J hidden, L outputs.

The hidden layer goes by in chunks: what is kept of it for the backward pass is its value before GELU. There
the products are the library's, those of the weights beside the others, and one kernel goes back through GELU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.side_streams import Leaves, beside
from linearno.ops.triton.common import (
    early,
    follow,
    load_rows,
    multiply,
    pad,
    power_of_two,
    processors,
    product_precision,
    round_to,
    store_rows,
    tile_of,
)
from linearno.ops.triton.norm import AHEAD, add_rows, column_sums
from linearno.ops.weight_cache import cast_weight

SLOPE = tl.constexpr(0.3275911 * 0.7071067811865476)  # of the series' variable
STEEP = tl.constexpr(-0.5 * 1.4426950408889634)  # exp(−z²/2) as a power of two
DENSITY = tl.constexpr(0.3989422804014327)  # of the normal distribution at zero


@triton.jit
def _tail(z):
    """The normal distribution below −|z|, and exp(−z²/2).

    Abramowitz and Stegun 7.1.26, within 2e-7: a hundred times less than the rounding of z to bf16. The
    reciprocal is the square of a root: two instructions, where a division takes nine.
    """
    bell = tl.exp2(z * z * STEEP)
    root = tl.rsqrt(1 + tl.abs(z) * SLOPE)
    t = root * root
    series = 0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    return t * series * bell, bell


@triton.jit
def gelu(z):
    """z times the normal distribution below z: from both sides of zero the same distance to max(z, 0)."""
    tail, _ = _tail(z)
    return tl.maximum(z, 0.0) - tl.abs(z) * tail


@triton.jit
def gelu_and_slope(z):
    tail, bell = _tail(z)
    below = tl.where(z < 0, tail, 1 - tail)
    return z * below, below + z * (DENSITY * bell)


@triton.jit
def _mlp(
    x_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, z_ptr, out_ptr, R,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, KEEP: tl.constexpr, GIVEN: tl.constexpr,
    BIASED: tl.constexpr, FIRST: tl.constexpr, PRODUCT: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program takes every so many tiles of rows. Weights that make one chunk it reads once, and each tile's
    rows while it works on the one before.

    Where the hidden layer before GELU is GIVEN, the first product is not taken.
    """
    follow(EARLY)
    i, o = tl.arange(0, BR), tl.arange(0, BL)
    if J <= BJ:
        w1, w2 = weights_of(w1_ptr, w2_ptr, 0, x_ptr, out_ptr, K, J, L, GIVEN, BK, BJ, BL)
        b1, x = bias_of(b1_ptr, 0, J, BJ), _inputs(x_ptr, tl.program_id(0), R, K, GIVEN, BR, BK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, BR), tl.num_programs(0), num_stages=1):
        first, left = tile_of(tile, R, BR)
        out = tl.zeros([BR, BL], tl.float32)
        z_row = z_ptr + first * J
        if J <= BJ:
            after = _inputs(x_ptr, tile + tl.num_programs(0), R, K, GIVEN, BR, BK)
            out = hidden_part(
                x, w1, w2, out, b1, z_row, i, left, 0, out_ptr, J, KEEP, GIVEN, FIRST, PRODUCT, BJ
            )
            x = after
        else:
            x = _inputs(x_ptr, tile, R, K, GIVEN, BR, BK)
            for start in range(0, J, BJ):
                w1, w2 = weights_of(w1_ptr, w2_ptr, start, x_ptr, out_ptr, K, J, L, GIVEN, BK, BJ, BL)
                b1 = bias_of(b1_ptr, start, J, BJ)
                out = hidden_part(
                    x, w1, w2, out, b1, z_row, i, left, start, out_ptr, J, KEEP, GIVEN, FIRST, PRODUCT, BJ
                )
        if BIASED:
            out += tl.load(b2_ptr + o, mask=o < L, other=0.0)[None, :]
        store_rows(out_ptr + first * L, out, i, o, left, L, BL)


@triton.jit
def _inputs(x_ptr, tile, R, K: tl.constexpr, GIVEN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr):
    """A tile's rows: none after the last, nor where they are not asked for."""
    if GIVEN:
        x = 0.0
    else:
        first, left = tile_of(tile, R, BR)
        x = load_rows(x_ptr + first * K, tl.arange(0, BR), tl.arange(0, BK), left, K, BK)
    return x


@triton.jit
def bias_of(b1_ptr, start, J: tl.constexpr, BJ: tl.constexpr):
    j = start + tl.arange(0, BJ)
    return tl.load(b1_ptr + j, mask=j < J, other=0.0)


@triton.jit
def weights_of(
    w1_ptr, w2_ptr, start, x_ptr, out_ptr,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, GIVEN: tl.constexpr,
    BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Those of some hidden columns: (K, j) and (j, L)."""
    k, j, o = tl.arange(0, BK), start + tl.arange(0, BJ), tl.arange(0, BL)
    w2 = tl.load(w2_ptr + o[None, :] * J + j[:, None], mask=(o < L)[None, :] & (j < J)[:, None], other=0.0)
    w2 = w2.to(out_ptr.dtype.element_ty)
    if GIVEN:
        w1 = w2
    else:
        w1 = tl.load(
            w1_ptr + j[None, :] * K + k[:, None], mask=(j < J)[None, :] & (k < K)[:, None], other=0.0
        )
        w1 = w1.to(x_ptr.dtype.element_ty)
    return w1, w2


@triton.jit
def hidden_part(
    x, w1, w2, out, b1, z_ptr, i, rows, start, out_ptr,
    J: tl.constexpr, KEEP: tl.constexpr, GIVEN: tl.constexpr, FIRST: tl.constexpr, PRODUCT: tl.constexpr,
    BJ: tl.constexpr,
):  # fmt: skip
    """`out` with the part of some hidden columns added; `z_ptr` is where those of row i = 0 begin."""
    kind = out_ptr.dtype.element_ty
    j = start + tl.arange(0, BJ)
    if GIVEN:
        z = load_rows(z_ptr, i, j, rows, J, BJ)
    else:
        z = round_to(multiply(x, w1, b1[None, :], FIRST), kind, FIRST)
    if KEEP:
        store_rows(z_ptr, z, i, j, rows, J, BJ)
    return multiply(gelu(z.to(tl.float32)).to(kind), w2, out, PRODUCT)


@triton.jit
def _product(
    x_ptr, w_ptr, b_ptr, z_ptr, R, K: tl.constexpr, J: tl.constexpr, PRODUCT: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """x wᵀ + b. A program takes some columns of a tile of rows; those of the same rows follow each other."""
    chunks: tl.constexpr = (J + BJ - 1) // BJ
    r = ((tl.program_id(0) // chunks) * BR + tl.arange(0, BR)).to(tl.int64)
    k, j = tl.arange(0, BK), (tl.program_id(0) % chunks) * BJ + tl.arange(0, BJ)
    rows, columns = (r < R)[:, None], (j < J)[None, :]
    x = tl.load(x_ptr + r[:, None] * K + k[None, :], mask=rows & (k < K)[None, :], other=0.0)
    w = tl.load(w_ptr + j[None, :] * K + k[:, None], mask=columns & (k < K)[:, None], other=0.0)
    z = multiply(x, w, tl.load(b_ptr + j, mask=j < J, other=0.0)[None, :], PRODUCT)
    tl.store(z_ptr + r[:, None] * J + j[None, :], z, mask=rows & columns)


@triton.jit
def _gelu_back(
    z_ptr, d_ptr, hidden_ptr, part_ptr, R, J: tl.constexpr,
    BR: tl.constexpr, BJ: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The gradient of the hidden layer becomes, in its place, that of the layer before GELU; beside it the
    layer after GELU, and a program's part of the bias's gradient."""
    follow(EARLY)
    j = tl.program_id(1) * BJ + tl.arange(0, BJ)
    d_bias = tl.zeros([BR, BJ], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, BR), tl.num_programs(0), num_stages=AHEAD):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        inside = (r < R)[:, None] & (j < J)[None, :]
        place = r[:, None] * J + j[None, :]
        z = tl.load(z_ptr + place, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(d_ptr + place, mask=inside, other=0.0).to(tl.float32)
        hidden, slope = gelu_and_slope(z)
        d *= slope
        d_bias += d
        tl.store(d_ptr + place, d, mask=inside)
        tl.store(hidden_ptr + place, hidden, mask=inside)
    tl.store(part_ptr + tl.program_id(0) * J + j, tl.sum(d_bias, axis=0), mask=j < J)


def _tile(rows: int, w2: Tensor, chunk: int) -> dict[str, int]:
    """Rows and hidden columns of a tile, fewer rows where there are few; measured on an H200."""
    outputs, hidden = w2.shape
    narrow = w2.dtype == torch.bfloat16
    tile = 64 if narrow else 32
    while tile > 16 and rows < tile * processors(w2.device):
        tile //= 2
    return {
        "BR": tile,
        "BJ": min(pad(hidden), chunk if narrow else 32),
        "BL": pad(outputs),
        "num_warps": 4,
        "num_stages": 3 if narrow else 1,
    }


def mlp_forward(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor]:
    """(the output, the hidden layer before GELU: empty unless kept), in the type of w2.

    Where x is wider than w2, the first product is taken in tf32. Where rows are wide and bf16 it is taken
    before the rest: one tile cannot hold the weights of both.
    """
    (rows, inputs), (outputs, hidden) = x.shape, w2.shape
    product, alike = product_precision(x), x.dtype == w2.dtype
    first = product if alike or product == "wide" else "tf32"
    given = outputs > 128 and w2.dtype == torch.bfloat16
    if given:
        z = hidden_layer(x, w1, b1, w2.dtype, first)
    else:
        z = x.new_empty(rows if keep else 0, hidden, dtype=w2.dtype)
    chunk = 64 if given or (not alike and inputs <= 64) else 32  # where there is more than one
    tile = _tile(rows, w2, chunk=128 if alike and max(inputs, hidden, outputs) <= 128 else chunk)
    programs = -(-rows // tile["BR"])
    if tile["BJ"] >= hidden:  # the weights are read once: few programs, many rows for each
        programs = min(programs, 2 * processors(x.device))
    out = x.new_empty(rows, outputs, dtype=w2.dtype)
    _mlp[(programs,)](
        x, w1, b1, w2, b1 if b2 is None else b2, z, out, rows,
        inputs, hidden, outputs, keep and not given, given, b2 is not None, first, product,
        BK=pad(inputs), **tile, **early(x.device),
    )  # fmt: skip
    return out, z if keep else z.new_empty(0)


def hidden_layer(x: Tensor, w: Tensor, b: Tensor, kind: torch.dtype, product: str) -> Tensor:
    """x wᵀ + b in the type `kind`: the library's product, unless x is of a wider type."""
    if x.dtype == kind:
        return torch.addmm(cast_weight(b, kind), x, w.mT)
    (rows, inputs), hidden = x.shape, len(w)
    large = inputs <= 128  # two tiles as large of wider rows would not fit
    tile = {"BR": 128 if large else 64, "BK": pad(inputs), "BJ": min(pad(hidden), 256 if large else 128)}
    z = x.new_empty(rows, hidden, dtype=kind)
    programs = -(-rows // tile["BR"]) * -(-hidden // tile["BJ"])
    _product[(programs,)](x, w, b, z, rows, inputs, hidden, product, **tile, num_warps=8 if large else 4)
    return z


def mlp_backward(
    x: Tensor, w1: Tensor, w2: Tensor, z: Tensor, d_out: Tensor, want_x: bool, biased: bool,
    leaves: Leaves = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of x (None unless wanted), w1, b1, w2 and, where there is one, b2."""
    d_out = d_out.to(z.dtype)
    d_z = d_out @ w2
    hidden, parts = gelu_backward_(z, d_z)
    small = beside(
        lambda: (
            *weight_gradients(d_z, x.to(z.dtype), False),
            add_rows(parts),
            *weight_gradients(d_out, hidden, biased),
        ),
        *(d_z, x, d_out, hidden, parts),
        leaves=leaves,
    )
    return (d_z.to(w1.dtype) @ w1).to(x.dtype) if want_x else None, *small


def gelu_backward_(z: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """(GELU of z, partial column sums of the gradient of z); d, the gradient of GELU, becomes that of z."""
    rows, columns = z.shape
    wide = min(128, power_of_two(columns))
    tile = 512 // wide
    across = -(-columns // wide)
    programs = min(-(-rows // tile), -(-10 * processors(z.device) // across))
    hidden, parts = torch.empty_like(z), z.new_empty(programs, columns, dtype=torch.float32)
    _gelu_back[(programs, across)](
        z, d, hidden, parts, rows, columns, tile, wide, AHEAD, num_warps=1, **early(z.device)
    )
    return hidden, parts


def weight_gradients(d_out: Tensor, x: Tensor, biased: bool) -> tuple[Tensor, ...]:
    """d_outᵀ x (L, K) in float32 and, where there is a bias, its gradient."""
    if d_out.device.type == "cuda" and d_out.dtype == x.dtype == torch.bfloat16:
        d_weight = torch.mm(d_out.mT, x, out_dtype=torch.float32)
    else:
        d_weight = d_out.float().mT @ x.float()
    return (d_weight, column_sums(d_out)) if biased else (d_weight,)
