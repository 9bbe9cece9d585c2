"""Small layers. Axes: B batch, N points, W width."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linearno.core.errors import UserError
from linearno.ops import layers as ops
from linearno.ops.layers import Residual


class Branch(nn.Sequential, ABC):
    """Layers that end in a linear map and are added to a residual stream."""

    @abstractmethod
    def with_bias(self, x: Float[Tensor, "*rows I"], bias: Tensor | None) -> Float[Tensor, "*rows O"]:
        """Output of the layers with `bias` in place of the last bias."""

    @abstractmethod
    def deferred(self, x: Float[Tensor, "*rows I"]) -> ops.PendingBranch:
        """Deferred output (inputs and weights), without the last bias: the next fused norm computes it."""

    @property
    def last(self) -> nn.Linear:
        last = self[-1]
        assert isinstance(last, nn.Linear)
        return last

    def add_to(self, stream: Residual, x: Float[Tensor, "*rows I"]) -> Residual:
        """The stream with the output of these layers as its pending term, which the next norm adds; the last
        bias is deferred too if a kernel supports it."""
        bias = self.last.bias
        if ops.norm_adds_bias(x, bias):
            return stream._replace(pending=self.deferred(x), offset=bias)
        return stream._replace(pending=self.with_bias(x, bias))


class Mlp(Branch):
    """Linear, GELU, Linear.

    Args:
        inputs: input width I.
        hidden: hidden width.
        outputs: output width O.
        exact: compute the first product in the dtype of its inputs instead of that of autocast.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, *, exact: bool = False):
        super().__init__(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
        self.exact = exact

    def forward(
        self, x: Float[Tensor, "*rows I"], shift: Float[Tensor, "O"] | None = None
    ) -> Float[Tensor, "*rows O"]:
        """Output; `shift` is added to the last bias, which costs O additions instead of O per row."""
        return self.with_bias(x, self.last.bias if shift is None else self.last.bias + shift)

    def with_bias(self, x: Float[Tensor, "*rows I"], bias: Tensor | None) -> Float[Tensor, "*rows O"]:
        first = self[0]
        assert isinstance(first, nn.Linear)
        return ops.mlp(x, first.weight, first.bias, self.last.weight, bias, exact=self.exact)

    def deferred(self, x: Float[Tensor, "*rows I"]) -> ops.PendingBranch:
        first = self[0]
        assert isinstance(first, nn.Linear)
        return ops.PendingBranch(x, self.last.weight, (first.weight, first.bias))


class Linear(nn.Linear):
    """A linear map with a bias."""

    def forward(self, x: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        return ops.linear(x, self.weight, self.bias)

    def with_passthrough(
        self, x: Float[Tensor, "*rows I"]
    ) -> tuple[Float[Tensor, "*rows O"], Float[Tensor, "*rows I"]]:
        """Output and x, so that the gradients of both are added in one kernel."""
        return ops.linear_with_passthrough(x, self.weight, self.bias)


class OneLinear(Branch):
    """A single linear map as a branch.

    Args:
        inputs: input width I.
        outputs: output width O.
    """

    def __init__(self, inputs: int, outputs: int):
        super().__init__(Linear(inputs, outputs))

    def with_bias(self, x: Float[Tensor, "*rows I"], bias: Tensor | None) -> Float[Tensor, "*rows O"]:
        return ops.linear(x, self.last.weight, bias)

    def deferred(self, x: Float[Tensor, "*rows I"]) -> ops.PendingBranch:
        return ops.PendingBranch(x, self.last.weight)


def add_norm(norm: nn.LayerNorm, stream: Residual) -> tuple[Residual, Tensor]:
    """The stream with its pending terms added, and its layer norm."""
    return ops.add_norm(stream, norm.weight, norm.bias, norm.eps)


def add_into(y: Tensor, h: Tensor) -> Tensor:
    """y + h in the dtype of h, in place in y if the dtypes agree; not differentiable."""
    return y.add_(h) if y.dtype == h.dtype else h + y


BLOCK_ELEMENTS = {"cpu": 2**18, "cuda": 2**28}  # fits the cache of a core, or the memory of a GPU


def pointwise(
    function: Callable[..., Tensor], *tensors: Float[Tensor, "B N ..."], in_place: bool = False
) -> Float[Tensor, "B N ..."]:
    """`function(*tensors)`, for a function that acts on each point separately.

    Without gradients the points are processed in blocks, so that intermediate results stay in the cache and
    need no memory that grows with the mesh. With `in_place` the result then overwrites the first tensor.
    """
    first = tensors[0]
    step = max(64, BLOCK_ELEMENTS.get(first.device.type, 2**18) // max(1, first[:, :1].numel()))
    if torch.is_grad_enabled() or first.shape[1] <= step:
        return function(*tensors)
    parts = zip(*(tensor.split(step, dim=1) for tensor in tensors), strict=True)
    out, start = first if in_place else None, 0
    for part in parts:
        block = function(*part)
        if out is None:
            out = block.new_empty(block.shape[0], first.shape[1], *block.shape[2:])
        out[:, start : start + step] = block
        start += step
    assert out is not None
    return out


def make_stem(width: int, grid: tuple[int, ...] | None) -> nn.Module:
    """Input projection of the attention: pointwise, or a convolution if a grid is given."""
    return Linear(width, width) if grid is None else GridConv(width, grid)


class GridConv(nn.Module):
    """A 3×3 (or 3×3×3) convolution over points that are the C-order flattening of a grid.

    Channels stay last in memory, so nothing is copied before or after the convolution.

    Args:
        width: channels W in and out.
        grid: points per axis; N is their product.
    """

    def __init__(self, width: int, grid: tuple[int, ...]):
        super().__init__()
        if len(grid) not in (2, 3):
            raise UserError(f"a convolutional stem needs a grid of 2 or 3 axes, got {grid}")
        conv = nn.Conv2d if len(grid) == 2 else nn.Conv3d
        self.grid = tuple(grid)
        self.conv = conv(width, width, kernel_size=3, padding=1)

    def forward(self, h: Float[Tensor, "B N W"]) -> Float[Tensor, "B N W"]:
        if h.shape[-2] != prod(self.grid):
            raise UserError(
                f"this model was built for the grid {self.grid} = {prod(self.grid)} points, got "
                f"{h.shape[-2]}; a model with a convolutional stem predicts on this grid only"
            )
        assert self.conv.bias is not None
        return ops.grid_conv(h, self.conv.weight, self.conv.bias, self.grid)
