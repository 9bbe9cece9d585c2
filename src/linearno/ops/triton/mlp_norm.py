"""A branch of the residual stream with the norm that adds it: one kernel forth and one back, for few rows,
where launches are what counts. Axes: R rows, K inputs, J hidden, L outputs.

The branch is one linear map, or Linear, GELU, Linear. The stream is kept as bf16 and eight bits
more, as in `norm`.
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
    processors,
    product_precision,
    store_rows,
    tile_of,
)
from linearno.ops.triton.mlp import bias_of, gelu_and_slope, hidden_part, weight_gradients, weights_of
from linearno.ops.triton.norm import add_rows, joined, split, standardise, standardise_back

CHUNK = 128  # hidden columns at once


@triton.jit
def _branch(
    x_ptr, w1_ptr, b1_ptr, w2_ptr, h_ptr, rest_ptr, offset_ptr, gain_ptr, shift_ptr,
    z_ptr, sum_ptr, left_ptr, out_ptr, moment_ptr, R, eps,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, REST: tl.constexpr, PRODUCT: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """h + rest + offset + the branch of x, what rounding that left, and its norm. J = 0: one linear map."""
    follow(EARLY)
    first, left = tile_of(tl.program_id(0), R, BR)
    i, k, o = tl.arange(0, BR), tl.arange(0, BK), tl.arange(0, BL)
    x = load_rows(x_ptr + first * K, i, k, left, K, BK)
    h = load_rows(h_ptr + first * L, i, o, left, L, BL)
    if REST:
        h = joined(h, load_rows(rest_ptr + first * L, i, o, left, L, BL))
    h = h.to(tl.float32)
    h += tl.load(offset_ptr + o, mask=o < L, other=0.0)[None, :]
    if J == 0:
        h = multiply(x, tl.trans(load_rows(w2_ptr, o, k, L, K, BK)), h, PRODUCT)
    else:
        for start in range(0, J, BJ):
            w1, w2 = weights_of(w1_ptr, w2_ptr, start, x_ptr, out_ptr, K, J, L, False, BK, BJ, BL)
            b1, z_row = bias_of(b1_ptr, start, J, BJ), z_ptr + first * J
            h = hidden_part(
                x, w1, w2, h, b1, z_row, i, left, start, out_ptr, J, True, False, PRODUCT, PRODUCT, BJ
            )
    upper, lower = split(h)
    store_rows(sum_ptr + first * L, upper, i, o, left, L, BL)
    store_rows(left_ptr + first * L, lower, i, o, left, L, BL)
    unit, mean, scale = standardise(h, (i < left)[:, None] & (o < L)[None, :], eps, L)
    tl.store(moment_ptr + 2 * first + 2 * i, mean, mask=i < left)
    tl.store(moment_ptr + 2 * first + 2 * i + 1, scale, mask=i < left)
    gain = tl.load(gain_ptr + o, mask=o < L, other=0.0)
    shift = tl.load(shift_ptr + o, mask=o < L, other=0.0)
    store_rows(out_ptr + first * L, unit * gain[None, :] + shift[None, :], i, o, left, L, BL)


@triton.jit
def _branch_back(
    h_ptr, moment_ptr, gain_ptr, d_out_ptr, along_ptr, z_ptr, w1_ptr, w2_ptr,
    d_h_ptr, d_z_ptr, hidden_ptr, d_x_ptr, part_ptr, R,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, ALONG: tl.constexpr, PRODUCT: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The gradients of the stream and of x; of the hidden layer that before GELU, and beside it the layer
    after GELU. A tile's parts of the gradients of gain, shift, offset and the first bias are side by side."""
    follow(EARLY)
    first, left = tile_of(tl.program_id(0), R, BR)
    i, k, o = tl.arange(0, BR), tl.arange(0, BK), tl.arange(0, BL)
    inside = (i < left)[:, None] & (o < L)[None, :]
    h = load_rows(h_ptr + first * L, i, o, left, L, BL).to(tl.float32)
    mean = tl.load(moment_ptr + 2 * first + 2 * i, mask=i < left, other=0.0)
    scale = tl.load(moment_ptr + 2 * first + 2 * i + 1, mask=i < left, other=0.0)
    gain = tl.load(gain_ptr + o, mask=o < L, other=0.0)
    unit = tl.where(inside, (h - mean[:, None]) * scale[:, None], 0.0)
    d_out = load_rows(d_out_ptr + first * L, i, o, left, L, BL).to(tl.float32)
    d_h = standardise_back(d_out * gain[None, :], unit, scale, L)
    if ALONG:
        d_h += load_rows(along_ptr + first * L, i, o, left, L, BL).to(tl.float32)
    d_h = tl.where(inside, d_h, 0.0)
    part = part_ptr + tl.program_id(0) * (3 * L + J)
    tl.store(part + o, tl.sum(d_out * unit, axis=0), mask=o < L)
    tl.store(part + L + o, tl.sum(d_out, axis=0), mask=o < L)
    tl.store(part + 2 * L + o, tl.sum(d_h, axis=0), mask=o < L)
    d_more = d_h.to(d_h_ptr.dtype.element_ty)
    store_rows(d_h_ptr + first * L, d_more, i, o, left, L, BL)
    d_x = tl.zeros([BR, BK], tl.float32)
    if J == 0:
        d_x = multiply(d_more, load_rows(w2_ptr, o, k, L, K, BK), d_x, PRODUCT)
    else:
        for start in range(0, J, BJ):
            w1, w2 = weights_of(w1_ptr, w2_ptr, start, d_x_ptr, d_z_ptr, K, J, L, False, BK, BJ, BL)
            j = start + tl.arange(0, BJ)
            z = load_rows(z_ptr + first * J, i, j, left, J, BJ).to(tl.float32)
            hidden, slope = gelu_and_slope(z)
            d = multiply(d_more, tl.trans(w2), 0.0, PRODUCT)
            hidden, d = hidden + 0.0 * d, d * slope  # lies as d does: else the compiler works it out twice
            store_rows(hidden_ptr + first * J, hidden, i, j, left, J, BJ)
            tl.store(part + 3 * L + j, tl.sum(d, axis=0), mask=j < J)
            d_z = d.to(d_z_ptr.dtype.element_ty)
            store_rows(d_z_ptr + first * J, d_z, i, j, left, J, BJ)
            d_x = multiply(d_z, tl.trans(w1), d_x, PRODUCT)
    store_rows(d_x_ptr + first * K, d_x, i, k, left, K, BK)


def _tile(rows: int, inputs: int, hidden: int, outputs: int, device: torch.device) -> dict[str, int]:
    """Measured on an H200."""
    return {
        "BR": 16 if rows <= 16 * processors(device) else 32,
        "BK": pad(inputs),
        "BJ": min(CHUNK, pad(hidden)),
        "BL": pad(outputs),
        "num_warps": 4,
        "num_stages": 2,
    }


def branch_forward(
    x: Tensor, h: Tensor, rest: Tensor | None, offset: Tensor, gain: Tensor, shift: Tensor, eps: float,
    first: tuple[Tensor, Tensor] | None, w2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(the sum, what rounding it left, its norm, its moments, the hidden layer before GELU: empty where there
    is none). `first` are weight and bias of the hidden layer, all weights in bf16."""
    (rows, inputs), outputs = x.shape, len(w2)
    hidden = 0 if first is None else w2.shape[1]
    total, left, out = (torch.empty_like(h, dtype=kind) for kind in (h.dtype, torch.int8, h.dtype))
    moments = h.new_empty(rows, 2, dtype=torch.float32)
    tile, z = _tile(rows, inputs, hidden, outputs, x.device), h.new_empty(rows, hidden)
    w1, b1 = first or (w2, gain)
    _branch[(-(-rows // tile["BR"]),)](
        x, w1, b1, w2, h, h if rest is None else rest, offset, gain, shift, z, total, left, out, moments,
        rows, eps, inputs, hidden, outputs, rest is not None, product_precision(x), **tile, **early(x.device),
    )  # fmt: skip
    return total, left, out, moments, z


def branch_backward(
    h: Tensor, moments: Tensor, gain: Tensor, d_out: Tensor, along: Tensor | None, x: Tensor, z: Tensor,
    w1: Tensor | None, w2: Tensor, leaves: Leaves,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Gradients of x, of the stream, and those of offset, gain, shift, then of the branch's weights: w1 and
    b1 where there are any, w2."""
    (rows, inputs), (outputs, hidden) = x.shape, (len(w2), z.shape[1])
    tile = _tile(rows, inputs, hidden, outputs, x.device)
    tiles = -(-rows // tile["BR"])
    d_h, d_x, d_z, after = (torch.empty_like(each) for each in (h, x, z, z))
    parts = h.new_empty(tiles, 3 * outputs + hidden, dtype=torch.float32)
    _branch_back[(tiles,)](
        h, moments, gain, d_out, d_out if along is None else along, z, w2 if w1 is None else w1, w2,
        d_h, d_z, after, d_x, parts, rows,
        inputs, hidden, outputs, along is not None, product_precision(x), **tile, **early(x.device),
    )  # fmt: skip

    def work() -> tuple[Tensor, ...]:
        d_gain, d_shift, d_offset, d_b1 = add_rows(parts).split([outputs] * 3 + [hidden])
        small = d_offset, d_gain, d_shift
        if w1 is None:
            return *small, *weight_gradients(d_h, x, False)
        return *small, *weight_gradients(d_z, x, False), d_b1, *weight_gradients(d_h, after, False)

    return d_x, d_h, beside(work, parts, d_h, x, d_z, after, leaves=leaves)
