"""A branch of the residual stream with the norm that adds it. Axes: R rows, K inputs, J hidden, L outputs.

The branch is one linear map, or Linear, GELU, Linear. The stream is kept as two bf16 numbers, as in `norm`.
Of few rows, where launches are what counts, it is one kernel forth and one back. Of many, where memory is,
what the branch gives goes into the sum without being written: its last product ends in the norm. The way back
is there that of the norm, and then that of the branch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linearno.ops.beside import Leaves, beside
from linearno.ops.kernels.launch import (
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
from linearno.ops.kernels.mlp import (
    gelu,
    gelu_and_slope,
    hidden_layer,
    hidden_part,
    mlp_backward,
    weight_gradients,
    weights_of,
)
from linearno.ops.kernels.norm import add_rows, norm_backward, standardise, standardise_back

CHUNK = 128  # hidden columns at once
FEW_ROWS, FEW_INPUTS = 8192, 128  # of a branch that is one kernel with its norm
# So many rows and warps that two programs share a processor: counted in registers, not measured.
JOIN = {"BR": 64, "BK": 64, "num_warps": 8, "num_stages": 2}


@triton.jit
def _branch(
    x_ptr, w1_ptr, b1_ptr, w2_ptr, h_ptr, rest_ptr, offset_ptr, gain_ptr, shift_ptr,
    z_ptr, sum_ptr, left_ptr, out_ptr, moment_ptr, R, eps,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, PRODUCT: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """h + rest + offset + the branch of x, what rounding that left, and its norm. J = 0: one linear map."""
    follow(EARLY)
    first, left = tile_of(tl.program_id(0), R, BR)
    i, k, o = tl.arange(0, BR), tl.arange(0, BK), tl.arange(0, BL)
    x = load_rows(x_ptr + first * K, i, k, left, K, BK)
    h = load_rows(h_ptr + first * L, i, o, left, L, BL).to(tl.float32)
    h += load_rows(rest_ptr + first * L, i, o, left, L, BL).to(tl.float32)
    h += tl.load(offset_ptr + o, mask=o < L, other=0.0)[None, :]
    if J == 0:
        h = multiply(x, tl.trans(load_rows(w2_ptr, o, k, L, K, BK)), h, PRODUCT)
    else:
        for start in range(0, J, BJ):
            w1, w2 = weights_of(w1_ptr, w2_ptr, start, x_ptr, out_ptr, K, J, L, False, BK, BJ, BL)
            h = hidden_part(
                x, w1, w2, h, b1_ptr, z_ptr + first * J, i, left, start, out_ptr, J, True, False, PRODUCT,
                PRODUCT, BJ,
            )  # fmt: skip
    _close(h, first, left, gain_ptr, shift_ptr, sum_ptr, left_ptr, out_ptr, moment_ptr, eps, L, BR, BL)


@triton.jit
def _join(
    x_ptr, w_ptr, h_ptr, rest_ptr, offset_ptr, gain_ptr, shift_ptr, sum_ptr, left_ptr, out_ptr, moment_ptr,
    R, eps, K: tl.constexpr, L: tl.constexpr, GELU: tl.constexpr, PRODUCT: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """What `_branch` gives, of x wᵀ or GELU(x) wᵀ."""
    follow(EARLY)
    first, left = tile_of(tl.program_id(0), R, BR)
    i, o = tl.arange(0, BR), tl.arange(0, BL)
    h = tl.zeros([BR, BL], tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = load_rows(x_ptr + first * K, i, k, left, K, BK)
        if GELU:
            x = gelu(x.to(tl.float32)).to(x_ptr.dtype.element_ty)
        w = load_rows(w_ptr, o, k, L, K, BK)
        h = multiply(x, tl.trans(w), h, PRODUCT)
    h += load_rows(h_ptr + first * L, i, o, left, L, BL).to(tl.float32)
    h += load_rows(rest_ptr + first * L, i, o, left, L, BL).to(tl.float32)
    h += tl.load(offset_ptr + o, mask=o < L, other=0.0)[None, :]
    _close(h, first, left, gain_ptr, shift_ptr, sum_ptr, left_ptr, out_ptr, moment_ptr, eps, L, BR, BL)


@triton.jit
def _close(
    h, first, rows, gain_ptr, shift_ptr, sum_ptr, left_ptr, out_ptr, moment_ptr, eps,
    L: tl.constexpr, BR: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Write the stream h from row `first` on, what rounding it left, its norm and its moments."""
    i, o = tl.arange(0, BR), tl.arange(0, BL)
    store_rows(sum_ptr + first * L, h, i, o, rows, L, BL)
    rest = h - h.to(sum_ptr.dtype.element_ty).to(tl.float32)
    store_rows(left_ptr + first * L, rest, i, o, rows, L, BL)
    unit, mean, scale = standardise(h, (i < rows)[:, None] & (o < L)[None, :], eps, L)
    tl.store(moment_ptr + 2 * first + 2 * i, mean, mask=i < rows)
    tl.store(moment_ptr + 2 * first + 2 * i + 1, scale, mask=i < rows)
    gain = tl.load(gain_ptr + o, mask=o < L, other=0.0)
    shift = tl.load(shift_ptr + o, mask=o < L, other=0.0)
    store_rows(out_ptr + first * L, unit * gain[None, :] + shift[None, :], i, o, rows, L, BL)


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
            hidden, d = hidden + 0.0 * d, d * slope  # lies as d does, as in `mlp`
            store_rows(hidden_ptr + first * J, hidden, i, j, left, J, BJ)
            tl.store(part + 3 * L + j, tl.sum(d, axis=0), mask=j < J)
            d_z = d.to(d_z_ptr.dtype.element_ty)
            store_rows(d_z_ptr + first * J, d_z, i, j, left, J, BJ)
            d_x = multiply(d_z, tl.trans(w1), d_x, PRODUCT)
    store_rows(d_x_ptr + first * K, d_x, i, k, left, K, BK)


def _tile(rows: int, inputs: int, hidden: int, outputs: int, device: torch.device) -> dict[str, int]:
    few = rows <= 16 * processors(device)
    return {
        "BR": 16 if few else 32,
        "BK": pad(inputs),
        "BJ": min(CHUNK, pad(hidden)),
        "BL": pad(outputs),
        "num_warps": 4 if few else 8,
        "num_stages": 2,
    }


def branch_forward(
    x: Tensor, h: Tensor, rest: Tensor, offset: Tensor, gain: Tensor, shift: Tensor, eps: float,
    first: tuple[Tensor, Tensor] | None, w2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(the sum, what rounding it left, its norm, its moments, the hidden layer before GELU: empty where there
    is none). `first` are weight and bias of the hidden layer, all weights in bf16."""
    (rows, inputs), outputs = x.shape, len(w2)
    hidden = 0 if first is None else w2.shape[1]
    total, left, out = (torch.empty_like(h) for _ in range(3))
    moments = h.new_empty(rows, 2, dtype=torch.float32)
    product = product_precision(x)
    if rows <= FEW_ROWS and inputs <= FEW_INPUTS:
        tile, z = _tile(rows, inputs, hidden, outputs, x.device), h.new_empty(rows, hidden)
        w1, b1 = first or (w2, gain)
        _branch[(-(-rows // tile["BR"]),)](
            x, w1, b1, w2, h, rest, offset, gain, shift, z, total, left, out, moments, rows, eps,
            inputs, hidden, outputs, product, **tile, **early(x.device),
        )  # fmt: skip
        return total, left, out, moments, z
    z = h.new_empty(rows, 0) if first is None else hidden_layer(x, *first, x.dtype, product)
    last = x if first is None else z
    _join[(-(-rows // JOIN["BR"]),)](
        last, w2, h, rest, offset, gain, shift, total, left, out, moments, rows, eps,
        last.shape[1], outputs, first is not None, product, BL=pad(outputs), **JOIN, **early(x.device),
    )  # fmt: skip
    return total, left, out, moments, z


def branch_backward(
    h: Tensor, moments: Tensor, gain: Tensor, d_out: Tensor, along: Tensor | None, x: Tensor, z: Tensor,
    w1: Tensor | None, w2: Tensor, leaves: Leaves,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Gradients of x, of the stream, and those of offset, gain, shift, then of the branch's weights: w1 and
    b1 where there are any, w2."""
    (rows, inputs), (outputs, hidden) = x.shape, (len(w2), z.shape[1])
    if rows > FEW_ROWS or inputs > FEW_INPUTS:
        return _back_in_turn(h, moments, gain, d_out, along, x, z, w1, w2, leaves)
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


def _back_in_turn(
    h: Tensor, moments: Tensor, gain: Tensor, d_out: Tensor, along: Tensor | None, x: Tensor, z: Tensor,
    w1: Tensor | None, w2: Tensor, leaves: Leaves,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:  # fmt: skip
    d_h, _, (d_gain, d_shift, d_offset) = norm_backward(
        h, moments, gain, d_out, along, (h.dtype, h.dtype), True, leaves
    )
    small = d_offset, d_gain, d_shift
    if w1 is None:
        of_branch = beside(lambda: weight_gradients(d_h, x, False), d_h, x, leaves=leaves)
        return d_h @ w2, d_h, (*small, *of_branch)
    d_z, of_branch = mlp_backward(x, w2, z, d_h, False, leaves)
    return d_z @ w1, d_h, (*small, *of_branch)
