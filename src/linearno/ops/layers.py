"""The layers between the verbs, plain or fused: norm, MLP, linear map, convolution on a grid.

Axes: … any leading axes, W width, J hidden, L outputs. Products are taken in autocast's type where it is on.
"""

from contextlib import nullcontext
from math import inf, prod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int8
from torch import Tensor
from torch.nn import functional as F

from linearno.ops.backend import compute_dtype, takes_kernel
from linearno.ops.convolve import by_library
from linearno.ops.side_streams import note_joint_use

Features = Float[Tensor, "*rows W"]
MOST_HIDDEN = 1024
FEW_ROWS, NARROW = 8192, 128  # that a branch and the norm after it are one kernel for
WIDEST = 256  # inputs and outputs of the fused MLP: a tile holds whole rows


class PendingBranch(NamedTuple):
    """Layers of a branch not computed yet: one linear map, or Linear, GELU, Linear, without the last bias."""

    x: Features
    last: Float[Tensor, "L J"]
    first: tuple[Float[Tensor, "J W"], Float[Tensor, "J"]] | None = None

    def compute(self) -> Features:
        if self.first is None:
            return linear(self.x, self.last, None)
        return mlp(self.x, *self.first, self.last, None)


class Residual(NamedTuple):
    """The residual stream as a sum that the next norm completes: h + low_bits + pending + offset.

    Args:
        h: the stream (…, W), which gradients flow along.
        low_bits: the eight bits of mantissa below bf16, if h was rounded to bf16; they have no gradient.
        pending: the output of the last layer, or the layers that compute it; None if there is none.
        offset: bias of that layer, if the norm adds it: its gradient is a sum that the norm's kernel takes.
    """

    h: Features
    low_bits: Int8[Tensor, "*rows W"] | None = None
    pending: Features | PendingBranch | None = None
    offset: Float[Tensor, "W"] | None = None

    def total(self) -> Features:
        """The sum, in float32 where the stream was rounded to bf16."""
        h = self.h
        if self.low_bits is not None:
            bits = (h.detach().view(torch.int16).int() << 16) + (self.low_bits.int() << 8)
            h = h.float() + (bits.view(torch.float32) - h.detach().float())
        parts = [part for part in (self.addend, self.offset) if part is not None]
        return sum((part.to(h.dtype) for part in parts), start=h)

    @property
    def addend(self) -> Features | None:
        """What the last layer gave."""
        return self.pending.compute() if isinstance(self.pending, PendingBranch) else self.pending


def add_norm(
    stream: Residual, gain: Float[Tensor, "W"], shift: Float[Tensor, "W"], eps: float
) -> tuple[Residual, Features]:
    """The stream with what was left open added, and its layer norm.

    Where products are taken in bf16 the kernel keeps the stream as bf16 and eight bits more, 16 bits of
    mantissa in all: its gradients are then bf16, and half the bytes.
    """
    h, rest, branch, offset = stream
    if isinstance(branch, PendingBranch) and offset is not None and _is_small(branch, h):
        from linearno.ops.fused_layers import FusedBranch

        w1, b1 = branch.first or (None, None)
        weights = [branch.last] if w1 is None else [w1, b1, branch.last]
        leaves = note_joint_use(offset, gain, shift, *weights)
        h, rest, normed = FusedBranch.apply(
            branch.x.to(h.dtype), h, rest, offset, gain, shift, eps, w1, b1, branch.last, leaves
        )
        return Residual(h, rest), normed
    more = stream.addend
    if rest is not None or _fused("norm", h, gain):
        from linearno.ops.fused_layers import FusedNorm

        kind = torch.float32 if rest is not None and not torch.is_autocast_enabled(h.device.type) else None
        kind = kind or compute_dtype(h)
        split = rest is not None or (kind == torch.bfloat16 and torch.is_grad_enabled())
        leaves = note_joint_use(offset, gain, shift)
        h, rest, normed = FusedNorm.apply(
            h.contiguous(), rest, more, offset, gain, shift, eps, kind, split, leaves
        )
        return Residual(h, rest), normed
    total = h if more is None else h + more
    total = total if offset is None else total + offset
    return Residual(total), F.layer_norm(total, gain.shape, gain, shift, eps)


def begin(h: Features, data: Tensor) -> Features:
    """h as a stream begins with it: in the type of the data, unless `add_norm` would round that to bf16."""
    halves = h.dtype == compute_dtype(h) == torch.bfloat16 and torch.is_grad_enabled()
    return h if halves and _fused("norm", h, data) else h.to(data.dtype)


def norm_adds_bias(x: Features, bias: Tensor) -> bool:
    """Whether `add_norm` has a kernel that adds a bias on its way."""
    return _fused("norm", x, bias)


def _is_small(branch: PendingBranch, h: Tensor) -> bool:
    """Whether one kernel takes a branch and the norm after it: rows and numbers in them are few."""
    (outputs, hidden), inputs = branch.last.shape, branch.x.shape[-1]
    few = branch.x.shape[:-1].numel() <= FEW_ROWS and max(outputs, inputs) <= NARROW
    halves = h.dtype == compute_dtype(h) == torch.bfloat16 and branch.x.dtype in (
        torch.bfloat16,
        torch.float32,
    )
    return few and halves and hidden <= MOST_HIDDEN and _fused("branch", h, branch.last)


def norm_linear(
    stream: Residual,
    gain: Float[Tensor, "W"],
    shift: Float[Tensor, "W"],
    eps: float,
    weight: Float[Tensor, "L W"],
    bias: Float[Tensor, "L"],
) -> Float[Tensor, "*rows L"]:
    """A linear map of the layer norm of the closed stream, in float32 where the stream is split."""
    h, rest, more, offset = stream.h, stream.low_bits, stream.addend, stream.offset
    alike = len(weight) == 1 and (h.dtype == torch.float32 or rest is not None)
    if alike and not torch.is_autocast_enabled(h.device.type) and _fused("head", h, weight):
        from linearno.ops.fused_layers import FusedHead

        return FusedHead.apply(h.contiguous(), rest, more, offset, gain, shift, eps, weight, bias)
    return linear(add_norm(Residual(h, rest, more, offset), gain, shift, eps)[1], weight, bias)


def mlp(
    x: Features,
    w1: Float[Tensor, "J W"],
    b1: Float[Tensor, "J"],
    w2: Float[Tensor, "L J"],
    b2: Float[Tensor, "L"] | None,
    *,
    exact: bool = False,
) -> Float[Tensor, "*rows L"]:
    """Linear, GELU, Linear. With `exact` autocast leaves the first product alone: for inputs such as
    coordinates, few and not to be rounded."""
    if _takes_mlp(x, w1, w2):
        from linearno.ops.fused_layers import FusedMlp

        kind, leaves = compute_dtype(x), note_joint_use(w1, b1, w2, b2)
        return FusedMlp.apply(x if exact else x.to(kind), w1, b1, w2, b2, kind, leaves)
    with torch.autocast(x.device.type, enabled=False) if exact else nullcontext():
        hidden = F.linear(x, w1, b1)
    return F.linear(F.gelu(hidden), w2, b2)


def inverse(t: Float[Tensor, "H"], low: float = -inf, high: float = inf) -> Float[Tensor, "H"]:
    """1 / t, with t clamped between the bounds."""
    if _fused("inverse", t, t):
        from linearno.ops.fused import FusedInverse

        return FusedInverse.apply(t, low, high, note_joint_use(t))
    return 1 / (t if low == -inf and high == inf else t.clamp(low, high))


def linear(
    x: Features, weight: Float[Tensor, "L W"], bias: Float[Tensor, "L"] | None
) -> Float[Tensor, "*rows L"]:
    """x weightᵀ + bias."""
    return linear_with_passthrough(x, weight, bias)[0]


def linear_with_passthrough(
    x: Features, weight: Float[Tensor, "L W"], bias: Float[Tensor, "L"] | None
) -> tuple[Float[Tensor, "*rows L"], Features]:
    """x weightᵀ + bias, and x again. Whoever reads x next should read it from here: then its gradient is
    added in the product of this one's."""
    if _fused("linear", x, weight):
        from linearno.ops.fused_layers import FusedLinear

        return FusedLinear.apply(x.to(compute_dtype(x)), weight, bias)
    return F.linear(x, weight, bias), x


def grid_conv(
    x: Float[Tensor, "B N W"], weight: Tensor, bias: Float[Tensor, "L"], grid: tuple[int, ...]
) -> Float[Tensor, "B N L"]:
    """A 3×3 (or 3×3×3) convolution with a border of zeros; points are the C-order flattening of `grid`."""
    assert x.shape[-2] == prod(grid)
    if _fused("convolution", x, weight):
        from linearno.ops.fused_layers import FusedConv

        return FusedConv.apply(x.to(compute_dtype(x)).contiguous(), weight, bias, grid)
    return by_library(x, weight, bias, grid)


def _takes_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> bool:
    refusal = None
    if max(x.shape[-1], len(w2)) > WIDEST or len(w1) > MOST_HIDDEN:
        sizes = f"{x.shape[-1]}, {len(w1)} and {len(w2)}"
        refusal = f"the kernel takes rows of {WIDEST} numbers and {MOST_HIDDEN} hidden ones, not {sizes}"
    return _tensor_cores(x) and _fused("mlp", x, w1, refusal)


def _fused(op: str, x: Tensor, weight: Tensor, refusal: str | None = None) -> bool:
    """A compiler fuses these layers by itself: inside one they stay plain."""
    if torch.compiler.is_compiling():
        return False
    if weight.dtype != torch.float32 or compute_dtype(x) not in (torch.float32, torch.bfloat16):
        refusal = (
            f"there are kernels for float32 and bfloat16, not {compute_dtype(x)} with {weight.dtype} weights"
        )
    return takes_kernel(op, x, refusal)


def _tensor_cores(x: Tensor) -> bool:
    """Exact float32 products are best left to the library."""
    narrow = compute_dtype(x) == torch.bfloat16
    return narrow or x.device.type != "cuda" or torch.backends.cuda.matmul.allow_tf32
