"""Gather and scatter in plain PyTorch, one block of points at a time.

Axes as in `gather_scatter`, with P = … · H heads of all samples.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linearno.ops.state import Score, State, merge_stacked

MAX_BLOCK_SCORES = {"cpu": 2**18, "cuda": 2**28}  # fits the cache of a core, or GPU memory


def _block_ranges(x: Tensor, slices: int) -> list[slice]:
    """Ranges of points with at most `MAX_BLOCK_SCORES` scores each, but at least 64 points."""
    batch, points = x.shape[:-3].numel() * x.shape[-2], x.shape[-3]
    step = max(64, MAX_BLOCK_SCORES.get(x.device.type, 2**18) // max(1, batch * slices))
    return [slice(start, min(start + step, points)) for start in range(0, max(points, 1), step)]


class _Workspace:
    """Memory reused by every block of a pass: fresh pages would cost more than the arithmetic."""

    def __init__(self, like: Tensor, size: int):
        self.flat = like.new_empty(size)

    def take(self, *shape: int) -> Tensor:
        """A contiguous tensor of uninitialised values."""
        return self.flat[: math.prod(shape)].view(shape)


def _fold_heads(x: Tensor) -> Tensor:
    """Reshape (…, N, H, D) to (P, N, D); a view for one sample."""
    return x.transpose(-3, -2).reshape(x.shape[:-3].numel() * x.shape[-2], x.shape[-3], x.shape[-1])


def _repeat_per_sample(part: Tensor, count: int) -> Tensor:
    """Repeat a tensor over heads (H, …) for every sample, to (P, …)."""
    return part if count == 1 else part.repeat(count, *(1,) * (part.dim() - 1))


def _is_half(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16)


def _at_least_float32(scores: Tensor) -> Tensor:
    """Convert half precision to float32 for normalisation and sums."""
    return scores.float() if _is_half(scores) else scores


def _key_scores(x: Tensor, weight: Tensor, bias: Tensor | None, score: Score) -> Tensor:
    """Scores (…, H, M, n) of a block; points are last to sum over contiguous memory."""
    return _scored(_at_least_float32(weight.mT @ x.movedim(-3, -1)), bias, score)


def _scored(scores: Tensor, bias: Tensor | None, score: Score) -> Tensor:
    if bias is not None:
        scores = scores + bias.unsqueeze(-1)
    if score == "linear":
        return scores
    return scores.softmax(dim=-2) if score == "softmax" else scores.log_softmax(dim=-2)


def _as_leaves(*tensors: Tensor | None) -> list[Tensor]:
    """Detached copies of the tensors that are not None, requiring gradients."""
    return [tensor.detach().requires_grad_() for tensor in tensors if tensor is not None]


def _gather_block(
    x: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, score: Score, workspace: _Workspace,
    state: State,
) -> None:  # fmt: skip
    """Write the state of a block to `state`: x (P, n, D), value (P, n, E), weight (P, M, D), bias (P, M)."""
    heads, points, _ = x.shape
    scores = torch.bmm(weight, x.mT, out=workspace.take(heads, weight.shape[1], points))
    scores = _scored(_at_least_float32(scores), bias, score)
    if points == 0:
        state.max.fill_(-torch.inf)
        state.sum.zero_()
        state.value.zero_()
        return
    torch.amax(scores, dim=-1, out=state.max)
    psi = torch.softmax(scores, dim=-1, out=scores)
    torch.amax(psi, dim=-1, out=state.sum).reciprocal_()  # ψ at the maximum is exp(0)/Z
    if _is_half(value):
        state.value.copy_(torch.bmm(psi.to(value.dtype), value))
    else:
        torch.bmm(psi, value, out=state.value)


def gather_whole(x: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, score: Score) -> State:
    """Gather all points as one block, for exported graphs: the number of blocks would depend on N."""
    scores = _key_scores(x, weight, bias, score)  # … H M N
    psi = scores.softmax(dim=-1)
    mean = psi.to(value.dtype) @ value.transpose(-3, -2)
    return State(scores.amax(dim=-1), psi.amax(dim=-1).reciprocal(), mean.to(psi.dtype))


class BlockGather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, score: Score
    ) -> tuple[Tensor, Tensor, Tensor]:
        features, values, slices = _fold_heads(x), _fold_heads(value), weight.shape[-1]
        batch, blocks = x.shape[:-3].numel(), _block_ranges(x, slices)
        weights = _repeat_per_sample(weight.mT.contiguous(), batch)
        biases = bias if bias is None else _repeat_per_sample(bias, batch)
        dtype = torch.float32 if _is_half(x) else x.dtype
        shape = (len(blocks), len(features), slices)  # K P M
        parts = State(*(x.new_empty(*shape, *extra, dtype=dtype) for extra in ((), (), (value.shape[-1],))))
        with torch.autocast(x.device.type, enabled=False):
            workspace = _Workspace(x, len(features) * slices * blocks[0].stop)
            for k, n in enumerate(blocks):
                part = State(parts.max[k], parts.sum[k], parts.value[k])
                _gather_block(features[:, n], values[:, n], weights, biases, score, workspace, part)
            merged = merge_stacked(*parts) if len(blocks) > 1 else State(*(part[0] for part in parts))
        heads = (*x.shape[:-3], x.shape[-2])
        state = State(*(part.view(*heads, *part.shape[1:]) for part in merged))
        ctx.save_for_backward(x, value, weight, bias, *state)
        ctx.score = score
        ctx.mark_non_differentiable(state.max)
        return state.max, state.sum, state.value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, d_sum: Tensor, d_mean: Tensor) -> tuple[Tensor | None, ...]:
        x, value, weight, bias, maximum, weight_sum, mean = ctx.saved_tensors
        log_sum = (maximum + weight_sum.log()).unsqueeze(-1)
        # ∂loss/∂score = ψ ∘ (dmean·v − mean·dmean + sum·dsum): no third pass over the points
        offset = (weight_sum * d_sum - (mean * d_mean).sum(dim=-1)).unsqueeze(-1)
        d_slices = d_mean.to(value.dtype)
        d_x, d_value = torch.empty_like(x), torch.empty_like(value)
        d_weight = torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        for n in _block_ranges(x, weight.shape[-1]):
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
                leaves = _as_leaves(x[..., n, :, :], weight, bias)
                scores = _key_scores(leaves[0], leaves[1], leaves[2] if bias is not None else None, ctx.score)
            psi = (scores.detach() - log_sum).exp_()  # … H M n
            d_value[..., n, :, :] = (psi.mT.to(value.dtype) @ d_slices).transpose(-3, -2)
            d_psi = (d_slices @ value[..., n, :, :].movedim(-3, -1)).to(psi.dtype)
            grads = torch.autograd.grad(scores, leaves, d_psi.add_(offset).mul_(psi))
            d_x[..., n, :, :] = grads[0]
            d_weight += grads[1]
            if d_bias is not None:
                d_bias += grads[2]
        return d_x, d_value, d_weight, d_bias, None


def scatter_block(x: Tensor, weight: Tensor, bias: Tensor | None, slices: Tensor, softmax: bool) -> Tensor:
    """Scatter to a block of points, differentiable by autograd."""
    scores = _at_least_float32(x.transpose(-3, -2) @ weight)  # … H n M
    if bias is not None:
        scores = scores + bias.unsqueeze(-2)
    phi = torch.softmax(scores, dim=-1) if softmax else scores.exp()
    return (phi.to(x.dtype) @ slices.to(x.dtype)).transpose(-3, -2)


class BlockScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, slices: Tensor, softmax: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, slices)
        ctx.softmax = softmax
        features, batch = _fold_heads(x), x.shape[:-3].numel()
        value = slices.reshape(len(features), *slices.shape[-2:]).to(x.dtype)  # P M E
        heads, count, width = value.shape
        weights, biases = _repeat_per_sample(weight, batch), bias
        if bias is not None:
            biases = (
                _repeat_per_sample(bias, batch) if bias.dim() == 2 else bias.reshape(heads, count)
            ).unsqueeze(-2)
        out = x.new_empty(batch, x.shape[-3], x.shape[-2], width)
        out_by_head = out.transpose(1, 2)  # B H N E
        blocks = _block_ranges(x, count)
        score_space, output_space = (_Workspace(x, heads * blocks[0].stop * size) for size in (count, width))
        with torch.autocast(x.device.type, enabled=False):
            for n in blocks:
                points = n.stop - n.start
                scores = torch.bmm(features[:, n], weights, out=score_space.take(heads, points, count))
                scores = _at_least_float32(scores) if biases is None else _at_least_float32(scores) + biases
                phi = torch.softmax(scores, dim=-1, out=scores) if softmax else scores.exp()
                block_out = torch.bmm(phi.to(x.dtype), value, out=output_space.take(heads, points, width))
                out_by_head[:, :, n].copy_(block_out.view(batch, x.shape[-2], points, width))
        return out.view(*x.shape[:-1], width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, slices = ctx.saved_tensors
        d_x = torch.empty_like(x)
        sums = [torch.zeros_like(t) for t in (weight, slices, bias) if t is not None]
        for n in _block_ranges(x, weight.shape[-1]):
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
                leaves = _as_leaves(x[..., n, :, :], weight, slices, bias)
                out = scatter_block(
                    leaves[0], leaves[1], leaves[3] if bias is not None else None, leaves[2], ctx.softmax
                )
            grads = torch.autograd.grad(out, leaves, d_out[..., n, :, :])
            d_x[..., n, :, :] = grads[0]
            for d_sum, grad in zip(sums, grads[1:], strict=True):
                d_sum += grad
        return d_x, sums[0], sums[2] if bias is not None else None, sums[1], None
