"""Linear, GELU, Linear in one kernel. Axes: R rows, K inputs, J hidden, L outputs.

The hidden layer goes by in chunks: what is kept of it for the backward pass is its value before GELU. The
backward kernel makes its gradient; the rest are library products, those of the weights beside the others.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.beside import Leaves, beside
from linearno.ops.kernels.launch import multiply, pad, processors, product_precision
from linearno.ops.kernels.norm import add_rows

SQRT_HALF = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)  # of the normal distribution at zero


@triton.jit
def _normal(z):
    """The normal distribution below z, and its density there, by one exponential between them.

    Abramowitz and Stegun 7.1.26, within 1e-7: a hundred times less than the rounding of z to bf16.
    """
    bell = tl.exp(-0.5 * z * z)
    t = 1 / (1 + 0.3275911 * SQRT_HALF * tl.abs(z))
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail *= 0.5 * bell
    return tl.where(z < 0, tail, 1 - tail), DENSITY * bell


@triton.jit
def _mlp(
    x_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, z_ptr, out_ptr, R,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, KEEP: tl.constexpr,
    FIRST: tl.constexpr, PRODUCT: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """A program takes every so many tiles of rows. Weights that make one chunk it reads once."""
    k, o = tl.arange(0, BK), tl.arange(0, BL)
    if J <= BJ:
        w1, w2 = _weights(w1_ptr, w2_ptr, 0, x_ptr, out_ptr, K, J, L, BK, BJ, BL)
    for tile in range(tl.program_id(0), tl.cdiv(R, BR), tl.num_programs(0)):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        rows = (r < R)[:, None]
        x = tl.load(x_ptr + r[:, None] * K + k[None, :], mask=rows & (k < K)[None, :], other=0.0)
        out = tl.zeros([BR, BL], tl.float32)
        if J <= BJ:
            out = _hidden(x, w1, w2, out, b1_ptr, z_ptr, r, rows, 0, out_ptr, J, KEEP, FIRST, PRODUCT, BJ)
        else:
            for start in range(0, J, BJ):
                w1, w2 = _weights(w1_ptr, w2_ptr, start, x_ptr, out_ptr, K, J, L, BK, BJ, BL)
                out = _hidden(
                    x, w1, w2, out, b1_ptr, z_ptr, r, rows, start, out_ptr, J, KEEP, FIRST, PRODUCT, BJ
                )
        out += tl.load(b2_ptr + o, mask=o < L, other=0.0)[None, :]
        tl.store(out_ptr + r[:, None] * L + o[None, :], out, mask=rows & (o < L)[None, :])


@triton.jit
def _weights(
    w1_ptr, w2_ptr, start, x_ptr, out_ptr,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Those of some hidden columns: (K, j) and (j, L)."""
    k, j, o = tl.arange(0, BK), start + tl.arange(0, BJ), tl.arange(0, BL)
    w1 = tl.load(w1_ptr + j[None, :] * K + k[:, None], mask=(j < J)[None, :] & (k < K)[:, None], other=0.0)
    w2 = tl.load(w2_ptr + o[None, :] * J + j[:, None], mask=(o < L)[None, :] & (j < J)[:, None], other=0.0)
    return w1.to(x_ptr.dtype.element_ty), w2.to(out_ptr.dtype.element_ty)


@triton.jit
def _hidden(
    x, w1, w2, out, b1_ptr, z_ptr, r, rows, start, out_ptr,
    J: tl.constexpr, KEEP: tl.constexpr, FIRST: tl.constexpr, PRODUCT: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """`out` with the part of some hidden columns added."""
    kind = out_ptr.dtype.element_ty
    j = start + tl.arange(0, BJ)
    z = multiply(x, w1, tl.load(b1_ptr + j, mask=j < J, other=0.0)[None, :], FIRST).to(kind)
    if KEEP:
        tl.store(z_ptr + r[:, None] * J + j[None, :], z, mask=rows & (j < J)[None, :])
    z = z.to(tl.float32)
    below, _ = _normal(z)
    return multiply((z * below).to(kind), w2, out, PRODUCT)


@triton.jit
def _mlp_back(
    d_out_ptr, z_ptr, w2_ptr, d_z_ptr, hidden_ptr, part_ptr, R,
    J: tl.constexpr, L: tl.constexpr, PRODUCT: tl.constexpr,
    BR: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """The gradient of the hidden layer before GELU, the layer after it, and a tile's part of the biases'."""
    o = tl.arange(0, BL)
    kind = z_ptr.dtype.element_ty
    tile = tl.program_id(0)
    r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
    rows = (r < R)[:, None]
    part = part_ptr + tile * (J + L)
    d_out = tl.load(d_out_ptr + r[:, None] * L + o[None, :], mask=rows & (o < L)[None, :], other=0.0)
    tl.store(part + J + o, tl.sum(d_out.to(tl.float32), axis=0), mask=o < L)
    for start in range(0, J, BJ):
        j = start + tl.arange(0, BJ)
        of_z, in_z = r[:, None] * J + j[None, :], rows & (j < J)[None, :]
        w2 = tl.load(
            w2_ptr + o[:, None] * J + j[None, :], mask=(o < L)[:, None] & (j < J)[None, :], other=0.0
        ).to(kind)
        z = tl.load(z_ptr + of_z, mask=in_z, other=0.0).to(tl.float32)
        below, density = _normal(z)
        d_z = multiply(d_out, w2, 0.0, PRODUCT) * (below + z * density)
        tl.store(part + j, tl.sum(d_z, axis=0), mask=j < J)
        tl.store(d_z_ptr + of_z, d_z, mask=in_z)
        tl.store(hidden_ptr + of_z, z * below, mask=in_z)


def _tile(rows: int, w2: Tensor, chunk: int) -> dict[str, int]:
    """Rows and hidden columns of a tile, fewer rows where there are few; measured on an H200."""
    outputs, hidden = w2.shape
    narrow, wide = w2.dtype == torch.bfloat16, outputs > 128
    tile = (128 if wide else 64) if narrow else 32
    while tile > 16 and rows < tile * processors(w2.device):
        tile //= 2
    return {
        "BR": tile,
        "BJ": min(pad(hidden), chunk if narrow and not wide else 32),
        "BL": pad(outputs),
        "num_warps": 8 if tile == 128 else 4,
        "num_stages": 2 if narrow else 1,
    }


def mlp_forward(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, keep: bool
) -> tuple[Tensor, Tensor]:
    """(the output, the hidden layer before GELU: empty unless kept), in the type of w2.

    Where x is wider than w2, the first product is taken in tf32.
    """
    (rows, inputs), (outputs, hidden) = x.shape, w2.shape
    product, alike = product_precision(x), x.dtype == w2.dtype
    first = product if alike or product == "wide" else "tf32"
    tile = _tile(rows, w2, chunk=128 if alike and max(inputs, hidden) <= 128 else 64 if alike else 32)
    programs = -(-rows // tile["BR"])
    if tile["BJ"] >= hidden:  # the weights are read once: few programs, many rows for each
        programs = min(programs, 2 * processors(x.device))
    z = x.new_empty(rows if keep else 0, hidden, dtype=w2.dtype)
    out = x.new_empty(rows, outputs, dtype=w2.dtype)
    _mlp[(programs,)](
        x, w1, b1, w2, b2, z, out, rows,
        inputs, hidden, outputs, keep, first, product, BK=pad(inputs), **tile,
    )  # fmt: skip
    return out, z


def mlp_backward(
    x: Tensor, w1: Tensor, w2: Tensor, z: Tensor, d_out: Tensor, want_x: bool, leaves: Leaves = None
) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, w1, b1, w2, b2."""
    outputs, hidden = w2.shape
    tile = _tile(len(x), w2, chunk=32)
    d_z, between, d_out = torch.empty_like(z), torch.empty_like(z), d_out.to(z.dtype)
    tiles = -(-len(x) // tile["BR"])
    parts = x.new_empty(tiles, hidden + outputs, dtype=torch.float32)
    _mlp_back[(tiles,)](
        d_out, z, w2, d_z, between, parts, len(x), hidden, outputs, product_precision(x), **tile
    )
    d_w1, d_w2, sums = beside(
        lambda: (weight_gradient(d_z, x.to(z.dtype)), weight_gradient(d_out, between), add_rows(parts)),
        *(d_z, x, d_out, between, parts),
        leaves=leaves,
    )
    d_b1, d_b2 = sums.split([hidden, outputs])
    return (d_z.to(w1.dtype) @ w1).to(x.dtype) if want_x else None, d_w1, d_b1, d_w2, d_b2


def weight_gradient(d_out: Tensor, x: Tensor) -> Tensor:
    """d_outᵀ x (L, K) in float32."""
    if d_out.device.type == "cuda" and d_out.dtype == x.dtype == torch.bfloat16:
        return torch.mm(d_out.mT, x, out_dtype=torch.float32)
    return d_out.float().mT @ x.float()
