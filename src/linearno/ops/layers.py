"""Layers around linear attention, fused or plain: layer norm, MLP, linear map, convolution on a grid.

Axes: … leading axes, W width, J hidden, L outputs. Products use the autocast dtype if autocast is on.
"""

from contextlib import nullcontext
from math import inf, prod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int8
from torch import Tensor
from torch.nn import functional as F

from linearno.ops.backend import compute_dtype, takes_kernel
from linearno.ops.convolve import convolve_by_library
from linearno.ops.side_streams import record_shared_use

Features = Float[Tensor, "*rows W"]
MAX_HIDDEN = 1024
MAX_BRANCH_ROWS, MAX_BRANCH_WIDTH = 8192, 128  # limits for fusing a branch with the norm after it
MAX_MLP_WIDTH = 256  # inputs and outputs of the fused MLP, whose tiles hold whole rows


class PendingBranch(NamedTuple):
    """A branch computed by the next norm: one linear map, or Linear, GELU, Linear; without the last bias.

    Args:
        x: input of the branch.
        last: weight of the last linear map.
        first: weight and bias of the hidden layer; None: a single linear map.
    """

    x: Features
    last: Float[Tensor, "L J"]
    first: tuple[Float[Tensor, "J W"], Float[Tensor, "J"]] | None = None

    def compute(self) -> Features:
        if self.first is None:
            return linear(self.x, self.last, None)
        return mlp(self.x, *self.first, self.last, None)


class Residual(NamedTuple):
    """The residual stream h + low_bits + pending + offset, summed by the next norm.

    Args:
        h: the stream (…, W), which carries the gradient.
        low_bits: eight bits of mantissa below bf16, if h was rounded to bf16; without gradient.
        pending: output of the last layer, or the branch that computes it.
        offset: bias of the last layer, if the norm adds it and sums its gradient.
    """

    h: Features
    low_bits: Int8[Tensor, "*rows W"] | None = None
    pending: Features | PendingBranch | None = None
    offset: Float[Tensor, "W"] | None = None

    def total(self) -> Features:
        """The sum; float32 if the stream was rounded to bf16."""
        h = self.h
        if self.low_bits is not None:
            bits = (h.detach().view(torch.int16).int() << 16) + (self.low_bits.int() << 8)
            h = h.float() + (bits.view(torch.float32) - h.detach().float())
        parts = [part for part in (self.addend, self.offset) if part is not None]
        return sum((part.to(h.dtype) for part in parts), start=h)

    @property
    def addend(self) -> Features | None:
        """The output of the last layer."""
        return self.pending.compute() if isinstance(self.pending, PendingBranch) else self.pending


def add_norm(
    stream: Residual, gain: Float[Tensor, "W"], shift: Float[Tensor, "W"], eps: float
) -> tuple[Residual, Features]:
    """Sum the residual stream and take its layer norm.

    If products are bf16, the kernel stores the stream as bf16 and eight further bits, 16 bits of mantissa in
    all. Its gradients are then bf16: half the bytes of float32.
    """
    h, low_bits, branch, offset = stream
    if isinstance(branch, PendingBranch) and offset is not None and _fuses_branch(branch, h):
        from linearno.ops.layer_autograd import FusedBranch

        w1, b1 = branch.first or (None, None)
        weights = [branch.last] if w1 is None else [w1, b1, branch.last]
        uses = record_shared_use(offset, gain, shift, *weights)
        h, low_bits, normed = FusedBranch.apply(
            branch.x.to(h.dtype), h, low_bits, offset, gain, shift, eps, w1, b1, branch.last, uses
        )
        return Residual(h, low_bits), normed
    addend = stream.addend
    if low_bits is not None or _takes_kernel("norm", h, gain):
        from linearno.ops.layer_autograd import FusedNorm

        exact = low_bits is not None and not torch.is_autocast_enabled(h.device.type)
        dtype = torch.float32 if exact else compute_dtype(h)
        split = low_bits is not None or (dtype == torch.bfloat16 and torch.is_grad_enabled())
        uses = record_shared_use(offset, gain, shift)
        h, low_bits, normed = FusedNorm.apply(
            h.contiguous(), low_bits, addend, offset, gain, shift, eps, dtype, split, uses
        )
        return Residual(h, low_bits), normed
    total = h if addend is None else h + addend
    total = total if offset is None else total + offset
    return Residual(total), F.layer_norm(total, gain.shape, gain, shift, eps)


def initial_stream(h: Features, data: Tensor) -> Features:
    """Cast h to the dtype of `data`, unless `add_norm` would round it to bf16 again."""
    use_bf16 = h.dtype == compute_dtype(h) == torch.bfloat16 and torch.is_grad_enabled()
    return h if use_bf16 and _takes_kernel("norm", h, data) else h.to(data.dtype)


def norm_adds_bias(x: Features, bias: Tensor) -> bool:
    """Whether `add_norm` runs as a kernel, which adds the bias."""
    return _takes_kernel("norm", x, bias)


def _fuses_branch(branch: PendingBranch, h: Tensor) -> bool:
    """Whether one kernel computes the branch and the norm after it: for few and narrow rows in bf16."""
    (outputs, hidden), inputs = branch.last.shape, branch.x.shape[-1]
    fits = branch.x.shape[:-1].numel() <= MAX_BRANCH_ROWS and max(outputs, inputs) <= MAX_BRANCH_WIDTH
    use_bf16 = h.dtype == compute_dtype(h) == torch.bfloat16
    use_bf16 = use_bf16 and branch.x.dtype in (torch.bfloat16, torch.float32)
    return fits and use_bf16 and hidden <= MAX_HIDDEN and _takes_kernel("branch", h, branch.last)


def norm_linear(
    stream: Residual, gain: Float[Tensor, "W"], shift: Float[Tensor, "W"], eps: float,
    weight: Float[Tensor, "L W"], bias: Float[Tensor, "L"],
) -> Float[Tensor, "*rows L"]:  # fmt: skip
    """A linear map of the layer norm of the summed stream; float32 if the stream has low bits."""
    h, low_bits, addend, offset = stream.h, stream.low_bits, stream.addend, stream.offset
    fits = len(weight) == 1 and (h.dtype == torch.float32 or low_bits is not None)
    if fits and not torch.is_autocast_enabled(h.device.type) and _takes_kernel("head", h, weight):
        from linearno.ops.layer_autograd import FusedHead

        return FusedHead.apply(h.contiguous(), low_bits, addend, offset, gain, shift, eps, weight, bias)
    return linear(add_norm(Residual(h, low_bits, addend, offset), gain, shift, eps)[1], weight, bias)


def mlp(
    x: Features, w1: Float[Tensor, "J W"], b1: Float[Tensor, "J"], w2: Float[Tensor, "L J"],
    b2: Float[Tensor, "L"] | None, *, exact: bool = False,
) -> Float[Tensor, "*rows L"]:  # fmt: skip
    """Linear, GELU, Linear.

    Args:
        x: inputs (…, W).
        w1: weight of the hidden layer.
        b1: bias of the hidden layer.
        w2: weight of the output layer.
        b2: bias of the output layer.
        exact: exclude the first product from autocast, for inputs such as coordinates.
    """
    if _takes_mlp(x, w1, w2):
        from linearno.ops.layer_autograd import FusedMlp

        dtype, uses = compute_dtype(x), record_shared_use(w1, b1, w2, b2)
        return FusedMlp.apply(x if exact else x.to(dtype), w1, b1, w2, b2, dtype, uses)
    with torch.autocast(x.device.type, enabled=False) if exact else nullcontext():
        hidden = F.linear(x, w1, b1)
    return F.linear(F.gelu(hidden), w2, b2)


def inverse(t: Float[Tensor, "H"], low: float = -inf, high: float = inf) -> Float[Tensor, "H"]:
    """1 / clamp(t, low, high)."""
    if _takes_kernel("inverse", t, t):
        from linearno.ops.attention_autograd import FusedInverse

        return FusedInverse.apply(t, low, high, record_shared_use(t))
    return 1 / (t if low == -inf and high == inf else t.clamp(low, high))


def linear(
    x: Features, weight: Float[Tensor, "L W"], bias: Float[Tensor, "L"] | None
) -> Float[Tensor, "*rows L"]:
    """x weightᵀ + bias."""
    return linear_with_passthrough(x, weight, bias)[0]


def linear_with_passthrough(
    x: Features, weight: Float[Tensor, "L W"], bias: Float[Tensor, "L"] | None
) -> tuple[Float[Tensor, "*rows L"], Features]:
    """x weightᵀ + bias, and x.

    If the next layer reads the returned x, its gradient is added inside the product of the backward pass.
    """
    if _takes_kernel("linear", x, weight):
        from linearno.ops.layer_autograd import FusedLinear

        return FusedLinear.apply(x.to(compute_dtype(x)), weight, bias)
    return F.linear(x, weight, bias), x


def grid_conv(
    x: Float[Tensor, "B N W"], weight: Tensor, bias: Float[Tensor, "L"], grid: tuple[int, ...]
) -> Float[Tensor, "B N L"]:
    """A zero-padded 3×3 (or 3×3×3) convolution; the points are `grid` flattened in C order."""
    assert x.shape[-2] == prod(grid)
    if _takes_kernel("convolution", x, weight):
        from linearno.ops.layer_autograd import FusedConv

        return FusedConv.apply(x.to(compute_dtype(x)).contiguous(), weight, bias, grid)
    return convolve_by_library(x, weight, bias, grid)


def _takes_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> bool:
    refusal = None
    if max(x.shape[-1], len(w2)) > MAX_MLP_WIDTH or len(w1) > MAX_HIDDEN:
        sizes = f"{x.shape[-1]}, {len(w1)} and {len(w2)}"
        refusal = f"the kernel takes up to {MAX_MLP_WIDTH} features and {MAX_HIDDEN} hidden ones, not {sizes}"
    return _has_fast_products(x) and _takes_kernel("mlp", x, w1, refusal)


def _takes_kernel(op: str, x: Tensor, weight: Tensor, refusal: str | None = None) -> bool:
    """Whether `op` runs as a kernel; never inside `torch.compile`, which fuses these layers itself."""
    if torch.compiler.is_compiling():
        return False
    if weight.dtype != torch.float32 or compute_dtype(x) not in (torch.float32, torch.bfloat16):
        refusal = (
            f"there are kernels for float32 and bfloat16, not {compute_dtype(x)} with {weight.dtype} weights"
        )
    return takes_kernel(op, x, refusal)


def _has_fast_products(x: Tensor) -> bool:
    """Whether the fused MLP pays off: cuBLAS is faster for exact float32 products."""
    use_bf16 = compute_dtype(x) == torch.bfloat16
    return use_bf16 or x.device.type != "cuda" or torch.backends.cuda.matmul.allow_tf32
