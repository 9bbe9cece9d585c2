"""A residual branch fused with the norm that adds it: one kernel forward and one backward.

For few rows, where the time of launches dominates. The branch is one linear map, or Linear, GELU, Linear. The
stream is stored as bf16 and eight further bits, as in `norm`. Axes: R rows, K inputs, J hidden, L outputs.
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
    processor_count,
    product_precision,
    store_rows,
    tile_rows,
    wait_for_previous_kernel,
)
from linearno.ops.triton.mlp import (
    add_hidden_chunk,
    gelu_and_derivative,
    load_bias,
    load_weights,
    weight_gradients,
)
from linearno.ops.triton.norm import join_bf16, split_bf16, standardise, standardise_back, sum_rows

MAX_HIDDEN_CHUNK = 128  # hidden columns of a tile


@triton.jit
def _branch(
    x_ptr, w1_ptr, b1_ptr, w2_ptr, h_ptr, low_bits_ptr, offset_ptr, gain_ptr, shift_ptr,
    z_ptr, sum_ptr, new_low_bits_ptr, out_ptr, moment_ptr, R, eps,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, HAS_LOW_BITS: tl.constexpr, PRECISION: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """sum = h + low_bits + offset + branch(x) and out = LayerNorm(sum). J = 0: one linear map."""
    wait_for_previous_kernel(DEPENDENT)
    first_row, rows = tile_rows(tl.program_id(0), R, BR)
    i, k, o = tl.arange(0, BR), tl.arange(0, BK), tl.arange(0, BL)
    x = load_rows(x_ptr + first_row * K, i, k, rows, K, BK)
    h = load_rows(h_ptr + first_row * L, i, o, rows, L, BL)
    if HAS_LOW_BITS:
        h = join_bf16(h, load_rows(low_bits_ptr + first_row * L, i, o, rows, L, BL))
    h = h.to(tl.float32)
    h += tl.load(offset_ptr + o, mask=o < L, other=0.0)[None, :]
    if J == 0:
        h = multiply(x, tl.trans(load_rows(w2_ptr, o, k, L, K, BK)), h, PRECISION)
    else:
        for start in range(0, J, BJ):
            w1, w2 = load_weights(w1_ptr, w2_ptr, start, x_ptr, out_ptr, K, J, L, False, BK, BJ, BL)
            b1, z_row = load_bias(b1_ptr, start, J, BJ), z_ptr + first_row * J
            h = add_hidden_chunk(
                x, w1, w2, h, b1, z_row, i, rows, start, out_ptr, J, True, False, PRECISION, PRECISION, BJ
            )
    high, low = split_bf16(h)
    store_rows(sum_ptr + first_row * L, high, i, o, rows, L, BL)
    store_rows(new_low_bits_ptr + first_row * L, low, i, o, rows, L, BL)
    unit, mean, scale = standardise(h, (i < rows)[:, None] & (o < L)[None, :], eps, L)
    tl.store(moment_ptr + 2 * first_row + 2 * i, mean, mask=i < rows)
    tl.store(moment_ptr + 2 * first_row + 2 * i + 1, scale, mask=i < rows)
    gain = tl.load(gain_ptr + o, mask=o < L, other=0.0)
    shift = tl.load(shift_ptr + o, mask=o < L, other=0.0)
    store_rows(out_ptr + first_row * L, unit * gain[None, :] + shift[None, :], i, o, rows, L, BL)


@triton.jit
def _branch_back(
    h_ptr, moment_ptr, gain_ptr, d_out_ptr, d_stream_ptr, z_ptr, w1_ptr, w2_ptr,
    d_h_ptr, d_z_ptr, hidden_ptr, d_x_ptr, part_ptr, R,
    K: tl.constexpr, J: tl.constexpr, L: tl.constexpr, HAS_D_STREAM: tl.constexpr, PRECISION: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Gradients of h, x and z (hidden layer before GELU), GELU(z), and for each tile of rows the partial
    gradients (3 L + J) of gain, shift, offset and first bias."""
    wait_for_previous_kernel(DEPENDENT)
    first_row, rows = tile_rows(tl.program_id(0), R, BR)
    i, k, o = tl.arange(0, BR), tl.arange(0, BK), tl.arange(0, BL)
    inside = (i < rows)[:, None] & (o < L)[None, :]
    h = load_rows(h_ptr + first_row * L, i, o, rows, L, BL).to(tl.float32)
    mean = tl.load(moment_ptr + 2 * first_row + 2 * i, mask=i < rows, other=0.0)
    scale = tl.load(moment_ptr + 2 * first_row + 2 * i + 1, mask=i < rows, other=0.0)
    gain = tl.load(gain_ptr + o, mask=o < L, other=0.0)
    unit = tl.where(inside, (h - mean[:, None]) * scale[:, None], 0.0)
    d_out = load_rows(d_out_ptr + first_row * L, i, o, rows, L, BL).to(tl.float32)
    d_h = standardise_back(d_out * gain[None, :], unit, scale, L)
    if HAS_D_STREAM:
        d_h += load_rows(d_stream_ptr + first_row * L, i, o, rows, L, BL).to(tl.float32)
    d_h = tl.where(inside, d_h, 0.0)
    part = part_ptr + tl.program_id(0) * (3 * L + J)
    tl.store(part + o, tl.sum(d_out * unit, axis=0), mask=o < L)
    tl.store(part + L + o, tl.sum(d_out, axis=0), mask=o < L)
    tl.store(part + 2 * L + o, tl.sum(d_h, axis=0), mask=o < L)
    d_addend = d_h.to(d_h_ptr.dtype.element_ty)
    store_rows(d_h_ptr + first_row * L, d_addend, i, o, rows, L, BL)
    d_x = tl.zeros([BR, BK], tl.float32)
    if J == 0:
        d_x = multiply(d_addend, load_rows(w2_ptr, o, k, L, K, BK), d_x, PRECISION)
    else:
        for start in range(0, J, BJ):
            w1, w2 = load_weights(w1_ptr, w2_ptr, start, d_x_ptr, d_z_ptr, K, J, L, False, BK, BJ, BL)
            j = start + tl.arange(0, BJ)
            z = load_rows(z_ptr + first_row * J, i, j, rows, J, BJ).to(tl.float32)
            hidden, derivative = gelu_and_derivative(z)
            grad = multiply(d_addend, tl.trans(w2), 0.0, PRECISION)
            # adding 0 · grad gives hidden the layout of grad; otherwise it is computed twice
            hidden, grad = hidden + 0.0 * grad, grad * derivative
            store_rows(hidden_ptr + first_row * J, hidden, i, j, rows, J, BJ)
            tl.store(part + 3 * L + j, tl.sum(grad, axis=0), mask=j < J)
            d_z = grad.to(d_z_ptr.dtype.element_ty)
            store_rows(d_z_ptr + first_row * J, d_z, i, j, rows, J, BJ)
            d_x = multiply(d_z, tl.trans(w1), d_x, PRECISION)
    store_rows(d_x_ptr + first_row * K, d_x, i, k, rows, K, BK)


def _tile_settings(rows: int, inputs: int, hidden: int, outputs: int, device: torch.device) -> dict[str, int]:
    """Tile sizes tuned on an H200."""
    return {
        "BR": 16 if rows <= 16 * processor_count(device) else 32,
        "BK": pad(inputs),
        "BJ": min(MAX_HIDDEN_CHUNK, pad(hidden)),
        "BL": pad(outputs),
        "num_warps": 4,
        "num_stages": 2,
    }


def branch_forward(
    x: Tensor, h: Tensor, low_bits: Tensor | None, offset: Tensor, gain: Tensor, shift: Tensor, eps: float,
    hidden_layer: tuple[Tensor, Tensor] | None, w2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The sum, its low bits, its norm, its moments, and the hidden layer before GELU (empty without one).

    `hidden_layer`: weight and bias; None: one linear map. Weights are bf16.
    """
    (rows, inputs), outputs = x.shape, len(w2)
    hidden = 0 if hidden_layer is None else w2.shape[1]
    total, new_low_bits, out = (torch.empty_like(h, dtype=dtype) for dtype in (h.dtype, torch.int8, h.dtype))
    moments = h.new_empty(rows, 2, dtype=torch.float32)
    tile, z = _tile_settings(rows, inputs, hidden, outputs, x.device), h.new_empty(rows, hidden)
    w1, b1 = hidden_layer or (w2, gain)
    _branch[(-(-rows // tile["BR"]),)](
        x, w1, b1, w2, h, h if low_bits is None else low_bits, offset, gain, shift, z, total, new_low_bits,
        out, moments, rows, eps, inputs, hidden, outputs, low_bits is not None, product_precision(x), **tile,
        **dependent_launch(x.device),
    )  # fmt: skip
    return total, new_low_bits, out, moments, z


def branch_backward(
    h: Tensor, moments: Tensor, gain: Tensor, d_out: Tensor, d_stream: Tensor | None, x: Tensor, z: Tensor,
    w1: Tensor | None, w2: Tensor, uses: ParameterUses,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Gradients of x, of h, and of the parameters: offset, gain, shift, then w1 and b1 if given, w2."""
    (rows, inputs), (outputs, hidden) = x.shape, (len(w2), z.shape[1])
    tile = _tile_settings(rows, inputs, hidden, outputs, x.device)
    tiles = -(-rows // tile["BR"])
    d_h, d_x, d_z, hidden_values = (torch.empty_like(like) for like in (h, x, z, z))
    parts = h.new_empty(tiles, 3 * outputs + hidden, dtype=torch.float32)
    _branch_back[(tiles,)](
        h, moments, gain, d_out, d_out if d_stream is None else d_stream, z, w2 if w1 is None else w1, w2,
        d_h, d_z, hidden_values, d_x, parts, rows,
        inputs, hidden, outputs, d_stream is not None, product_precision(x), **tile,
        **dependent_launch(x.device),
    )  # fmt: skip

    def parameter_gradients() -> tuple[Tensor, ...]:
        d_gain, d_shift, d_offset, d_b1 = sum_rows(parts).split([outputs] * 3 + [hidden])
        d_norm = d_offset, d_gain, d_shift
        if w1 is None:
            return *d_norm, *weight_gradients(d_h, x, False)
        return *d_norm, *weight_gradients(d_z, x, False), d_b1, *weight_gradients(d_h, hidden_values, False)

    return d_x, d_h, run_on_side_stream(parameter_gradients, parts, d_h, x, d_z, hidden_values, uses=uses)
