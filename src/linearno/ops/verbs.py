"""The three verbs, without an N×M tensor: points are taken a block at a time, blocks merge exactly.

Axes: … any leading axes, N points, H heads, D head width, E value width (mostly D), M slices, K parts,
S segments: meshes of different sizes one after another, x (1, T, H, D) with T = Σ N_i (`segments`).

Scores are made inside, from features and a small weight: score = x w · scale + bias. The backward passes
make them again block by block, so training keeps no N×M tensor either.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from linearno.core.errors import UserError
from linearno.ops.beside import note_joint_use
from linearno.ops.choice import takes_kernel
from linearno.ops.segments import Segments, apart, sizes_of

Points = Float[Tensor, "*batch N H D"]
Values = Float[Tensor, "*batch N H E"]
Slices = Float[Tensor, "*batch H M E"]
PerSlice = Float[Tensor, "*batch H M"]
Weight = Float[Tensor, "D M"]  # shared by all heads
Scale = Float[Tensor, "H"]  # 1/τ of each head
Bias = Float[Tensor, "M"]
Project = Float[Tensor, "E F"]

Score = Literal["linear", "softmax", "log_softmax"]  # what is done to a point's scores, over M, before ψ

MOST_SLICES, WIDEST_HEAD = 256, 64  # of the kernels
BLOCK = {"cpu": 2**18, "cuda": 2**28}  # scores in flight: what fits a core's cache, or a GPU's memory


class State(NamedTuple):
    """What M slices know of the points seen so far, with weights w = exp(score): Σw = sum·exp(max).

    `value` is the weighted mean Σ w v / Σ w; only `max + log(sum)` has a meaning, so gradients flow
    through `sum` and `max` counts as a constant.
    """

    max: PerSlice
    sum: PerSlice
    value: Slices


def gather(
    x: Points,
    weight: Weight,
    scale: Scale | None = None,
    *,
    bias: Bias | None = None,
    value: Values | None = None,
    project: Project | None = None,
    score: Score = "linear",
    segments: Segments | None = None,
) -> State:
    """Gather points into slices: value_m = Σ_n ψ_nm v_n,  ψ = softmax over N of the scores (Eq. 8).

    `value` is what is averaged (x itself by default), `project` a linear map of it: the map of a mean is
    the mean of the mapped, so it acts on M slices instead of N points. With `score="log_softmax"` ψ becomes
    Transolver's softmax over M normalised by its sum over N: w / Σw = softmax_N(log w) for w = softmax_M.
    With `segments` each is gathered by itself: the state has an entry for each of them.
    """
    return gather_on(
        x, weight, scale, bias=bias, value=value, project=project, score=score, segments=segments
    )[1]


def gather_on(
    x: Points,
    weight: Weight,
    scale: Scale | None = None,
    *,
    bias: Bias | None = None,
    value: Values | None = None,
    project: Project | None = None,
    score: Score = "linear",
    segments: Segments | None = None,
) -> tuple[Points, State]:
    """x again, and `gather` of it. Whoever reads these points next should read them from here: then the
    kernel's backward pass adds that gradient to its own, and x is written once."""
    if takes_kernel("gather", x, _refusal(x, weight)):
        from linearno.ops.fused import FusedGather

        inside = None if _crowded(x, weight) else project
        flat = None if value is None else _flat(value.to(x.dtype))
        scale = _scale(x, scale)
        leaves = note_joint_use(weight, scale, bias, inside)
        top, total, mean, same = FusedGather.apply(
            _flat(x), flat, weight, scale, bias, inside, score, *_packed(x, segments), leaves
        )
        meshes = x.shape[:-3] if segments is None else (len(segments) - 1,)
        state = State(*(part.view(*meshes, *part.shape[1:]) for part in (top, total, mean)))
        x, project = same.view(x.shape), None if inside is not None else project
    elif segments is not None:
        values = [None] * (len(segments) - 1) if value is None else apart(value, segments)
        states = [
            gather(part, weight, scale, bias=bias, value=own, project=project, score=score)
            for part, own in zip(apart(x, segments), values, strict=True)
        ]
        return x, State(*(torch.cat(parts) for parts in zip(*states, strict=True)))
    else:
        weight, bias = _per_head(x, weight, scale, bias)
        gather_all = _gather_whole if torch.compiler.is_exporting() else _Gather.apply
        state = State(*gather_all(x, x if value is None else value, weight, bias, score))
    return x, state if project is None else state._replace(value=state.value @ project)


def merge(*states: State) -> State:
    """The state of all points together, from the states of any parts of them; exact at any magnitude."""
    return _merge(*(torch.stack(parts) for parts in zip(*states, strict=True)))


def _merge(maxima: Tensor, sums: Tensor, values: Tensor) -> State:
    """The state of K parts stacked: maxima and sums (K, …, H, M), values (K, …, H, M, E)."""
    top = maxima.amax(dim=0)
    reachable = torch.where(top.isinf(), torch.zeros_like(top), top)  # all parts empty: no weight at all
    sums = sums * (maxima - reachable).exp()
    total = sums.sum(dim=0)
    shares = sums / torch.where(total > 0, total, torch.ones_like(total))
    return State(top, total, (shares.unsqueeze(-1) * values).sum(dim=0))


def scatter(
    x: Points,
    weight: Weight,
    scale: Scale | None,
    state: State,
    *,
    bias: Bias | None = None,
    normaliser: State | None = None,
    segments: Segments | None = None,
) -> Values:
    """Scatter slices back to points: out_n = Σ_m φ_nm value_m,  φ = softmax over M of the scores (Eq. 8).

    With a `normaliser` (the state gathered by the same weight) φ is instead the softmax over its points.
    With `segments` the points of each get its own entry of the state.
    """
    refusal = _refusal(x, weight) if normaliser is None else "φ normalised over the points has no kernel"
    if takes_kernel("scatter", x, refusal):
        from linearno.ops.fused import FusedScatter

        slices = state.value.reshape(-1, *state.value.shape[-3:]).float().contiguous()
        scale = _scale(x, scale)
        leaves = note_joint_use(weight, scale, bias)
        out = FusedScatter.apply(_flat(x), weight, scale, bias, slices, *_packed(x, segments, state), leaves)
        return out.view(*x.shape[:-1], -1)
    if segments is not None:

        def one(x: Tensor, state: State, normaliser: State | None = None) -> Tensor:
            return scatter(x, weight, scale, state, bias=bias, normaliser=normaliser)

        return by_segment(one, segments, [x], [state] if normaliser is None else [state, normaliser])
    weight, bias = _per_head(x, weight, scale, bias)
    if normaliser is not None:  # exp(score − max) / sum is exp of a score with a shifted bias
        shift = normaliser.max + normaliser.sum.log()
        bias = bias - shift if bias is not None else -shift
    scatter_all = _scatter_block if torch.compiler.is_exporting() else _Scatter.apply
    return scatter_all(x, weight, bias, state.value, normaliser is None)


def by_segment(
    function: Callable[..., Tensor],
    segments: Segments | None,
    points: Sequence[Tensor],
    states: Sequence[State],
) -> Tensor:
    """`function(*points, *states)`; with segments, of the points (1, N_i, …) and states of each in turn."""
    if segments is None:
        return function(*points, *states)
    own = [list(zip(*(part.split(1) for part in state), strict=True)) for state in states]
    if any(len(each) != len(segments) - 1 for each in own):
        raise UserError(f"the states are of {len(own[0])} meshes, the segments of {len(segments) - 1}")
    parts = zip(*(apart(x, segments) for x in points), *own, strict=True)
    count = len(points)
    return torch.cat([function(*part[:count], *(State(*s) for s in part[count:])) for part in parts], dim=1)


def _refusal(x: Tensor, weight: Tensor) -> str | None:
    """Why the kernels cannot take these shapes, if they cannot."""
    width, slices = weight.shape
    if x.dtype not in (torch.float32, torch.bfloat16):
        return f"there are kernels for float32 and bfloat16, not {x.dtype}"
    if not 1 <= slices <= MOST_SLICES or not 1 <= width <= WIDEST_HEAD:
        return (
            f"kernels take up to {MOST_SLICES} slices and head width {WIDEST_HEAD}, not {slices} and {width}"
        )
    return None if x.numel() else "there are no points"


def _crowded(x: Tensor, weight: Tensor) -> bool:
    """Whether a processor's memory has no room for the map of the slices beside all else."""
    width, slices = weight.shape
    return x.dtype == torch.float32 and width > WIDEST_HEAD // 2 and slices > MOST_SLICES // 2


def _packed(x: Tensor, segments: Segments | None, state: State | None = None) -> tuple[Tensor | None, int]:
    """The offsets of packed meshes on the device, and the most points that one has."""
    if segments is None:
        return None, 0
    sizes = sizes_of(segments, x.shape[-3])
    if state is not None and len(state.value) != len(sizes):
        raise UserError(f"the states are of {len(state.value)} meshes, the segments of {len(sizes)}")
    return _offsets_on(x.device, tuple(segments.tolist())), max(sizes)


@lru_cache(maxsize=64)
def _offsets_on(device: torch.device, offsets: tuple[int, ...]) -> Tensor:
    """Every layer asks for the same ones."""
    return torch.tensor(offsets, device=device)


def _flat(x: Tensor) -> Tensor:
    """One batch axis, in order in memory."""
    return x.reshape(x.shape[:-3].numel(), *x.shape[-3:]).contiguous()


def _scale(x: Tensor, scale: Tensor | None) -> Tensor:
    return x.new_ones(x.shape[-2], dtype=torch.float32) if scale is None else scale.float()


def _per_head(
    x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Fold the heads' scales into weight (H, D, M) and bias (H, M): small tensors, plain autograd."""
    scale = x.new_ones(x.shape[-2]) if scale is None else scale.to(x.dtype)
    weight = scale[:, None, None] * weight.to(x.dtype)
    return weight, None if bias is None else scale[:, None] * bias.to(x.dtype)


def _blocks(x: Tensor, slices: int) -> list[slice]:
    """Ranges of points whose scores fit the budget of the device."""
    batch, points = x.shape[:-3].numel() * x.shape[-2], x.shape[-3]
    step = max(64, BLOCK.get(x.device.type, 2**18) // max(1, batch * slices))
    return [slice(start, min(start + step, points)) for start in range(0, max(points, 1), step)]


class _Workspace:
    """Room for what a block needs, taken once and used for every block of a pass.

    Fresh memory for each block would cost more than the arithmetic: the system hands it out page by page.
    """

    def __init__(self, like: Tensor, numbers: int):
        self.flat = like.new_empty(numbers)

    def room(self, *shape: int) -> Tensor:
        """A contiguous tensor to write into."""
        return self.flat[: math.prod(shape)].view(shape)


def _fold(x: Tensor) -> Tensor:
    """(…, N, H, D) as (P, N, D) with P = … · H: for one sample a view."""
    return x.transpose(-3, -2).reshape(x.shape[:-3].numel() * x.shape[-2], x.shape[-3], x.shape[-1])


def _repeat(part: Tensor, times: int) -> Tensor:
    """What each head has, for the heads of every sample."""
    return part if times == 1 else part.repeat(times, *(1,) * (part.dim() - 1))


def _half(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16)


def _wide(scores: Tensor) -> Tensor:
    """Half precisions are normalised and accumulated in float32."""
    return scores.float() if _half(scores) else scores


def _key_scores(x: Tensor, weight: Tensor, bias: Tensor | None, score: Score) -> Tensor:
    """Scores of a block as (…, H, M, n): points last, so that the sums over points run along memory."""
    return _scored(_wide(weight.mT @ x.movedim(-3, -1)), bias, score)


def _scored(scores: Tensor, bias: Tensor | None, score: Score) -> Tensor:
    if bias is not None:
        scores = scores + bias.unsqueeze(-1)
    if score == "linear":
        return scores
    return scores.softmax(dim=-2) if score == "softmax" else scores.log_softmax(dim=-2)


def _leaves(*tensors: Tensor | None) -> list[Tensor]:
    """The tensors that are there, as the start of a graph of their own."""
    return [tensor.detach().requires_grad_() for tensor in tensors if tensor is not None]


def _gather_block(
    x: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, score: Score, work: _Workspace, into: State
) -> None:
    """The state of a block: x (P, n, D), value (P, n, E), weight (P, M, D), bias (P, M)."""
    heads, points, _ = x.shape
    scores = torch.bmm(weight, x.mT, out=work.room(heads, weight.shape[1], points))
    scores = _scored(_wide(scores), bias, score)
    if points == 0:
        into.max.fill_(-torch.inf)
        into.sum.zero_()
        into.value.zero_()
        return
    torch.amax(scores, dim=-1, out=into.max)
    psi = torch.softmax(scores, dim=-1, out=scores)
    torch.amax(psi, dim=-1, out=into.sum).reciprocal_()  # ψ at the maximum is exp(0)/Z
    if _half(value):
        into.value.copy_(torch.bmm(psi.to(value.dtype), value))
    else:
        torch.bmm(psi, value, out=into.value)


def _gather_whole(x: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, score: Score) -> State:
    """The state of all points as one block: an exported graph serves any N, and cannot count blocks."""
    scores = _key_scores(x, weight, bias, score)  # … H M N
    psi = scores.softmax(dim=-1)
    mean = psi.to(value.dtype) @ value.transpose(-3, -2)
    return State(scores.amax(dim=-1), psi.amax(dim=-1).reciprocal(), mean.to(psi.dtype))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, score: Score
    ) -> tuple[Tensor, Tensor, Tensor]:
        features, values, slices = _fold(x), _fold(value), weight.shape[-1]
        batch, blocks = x.shape[:-3].numel(), _blocks(x, slices)
        turned, shift = _repeat(weight.mT.contiguous(), batch), bias if bias is None else _repeat(bias, batch)
        kind = torch.float32 if _half(x) else x.dtype
        place = (len(blocks), len(features), slices)  # K P M
        parts = State(*(x.new_empty(*place, *more, dtype=kind) for more in ((), (), (value.shape[-1],))))
        with torch.autocast(x.device.type, enabled=False):
            work = _Workspace(x, len(features) * slices * blocks[0].stop)
            for k, n in enumerate(blocks):
                into = State(parts.max[k], parts.sum[k], parts.value[k])
                _gather_block(features[:, n], values[:, n], turned, shift, score, work, into)
            whole = _merge(*parts) if len(blocks) > 1 else State(*(part[0] for part in parts))
        heads = (*x.shape[:-3], x.shape[-2])
        state = State(*(part.view(*heads, *part.shape[1:]) for part in whole))
        ctx.save_for_backward(x, value, weight, bias, *state)
        ctx.score = score
        ctx.mark_non_differentiable(state.max)
        return state.max, state.sum, state.value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, d_sum: Tensor, d_mean: Tensor) -> tuple[Tensor | None, ...]:
        x, value, weight, bias, top, total, mean = ctx.saved_tensors
        log_sum = (top + total.log()).unsqueeze(-1)
        # ∂loss/∂score = ψ ∘ (dmean·v − mean·dmean + sum·dsum): no third pass over the points
        offset = (total * d_sum - (mean * d_mean).sum(dim=-1)).unsqueeze(-1)
        d_slices = d_mean.to(value.dtype)
        d_x, d_value = torch.empty_like(x), torch.empty_like(value)
        d_weight = torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        for n in _blocks(x, weight.shape[-1]):
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
                leaf = _leaves(x[..., n, :, :], weight, bias)
                scores = _key_scores(leaf[0], leaf[1], leaf[2] if bias is not None else None, ctx.score)
            psi = (scores.detach() - log_sum).exp_()  # … H M n
            d_value[..., n, :, :] = (psi.mT.to(value.dtype) @ d_slices).transpose(-3, -2)
            d_psi = (d_slices @ value[..., n, :, :].movedim(-3, -1)).to(psi.dtype)
            grads = torch.autograd.grad(scores, leaf, d_psi.add_(offset).mul_(psi))
            d_x[..., n, :, :] = grads[0]
            d_weight += grads[1]
            if d_bias is not None:
                d_bias += grads[2]
        return d_x, d_value, d_weight, d_bias, None


def _scatter_block(x: Tensor, weight: Tensor, bias: Tensor | None, slices: Tensor, softmax: bool) -> Tensor:
    """The output at a block of points, for autograd to differentiate."""
    scores = _wide(x.transpose(-3, -2) @ weight)  # … H n M
    if bias is not None:
        scores = scores + bias.unsqueeze(-2)
    phi = torch.softmax(scores, dim=-1) if softmax else scores.exp()
    return (phi.to(x.dtype) @ slices.to(x.dtype)).transpose(-3, -2)


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, slices: Tensor, softmax: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, slices)
        ctx.softmax = softmax
        features, batch = _fold(x), x.shape[:-3].numel()
        value = slices.reshape(len(features), *slices.shape[-2:]).to(x.dtype)  # P M E
        heads, count, width = value.shape
        weights, shift = _repeat(weight, batch), bias
        if bias is not None:
            shift = (_repeat(bias, batch) if bias.dim() == 2 else bias.reshape(heads, count)).unsqueeze(-2)
        out = x.new_empty(batch, x.shape[-3], x.shape[-2], width)
        by_head = out.transpose(1, 2)  # B H N E
        blocks = _blocks(x, count)
        scored, answered = (_Workspace(x, heads * blocks[0].stop * numbers) for numbers in (count, width))
        with torch.autocast(x.device.type, enabled=False):
            for n in blocks:
                points = n.stop - n.start
                scores = torch.bmm(features[:, n], weights, out=scored.room(heads, points, count))
                scores = _wide(scores) if shift is None else _wide(scores) + shift
                phi = torch.softmax(scores, dim=-1, out=scores) if softmax else scores.exp()
                here = torch.bmm(phi.to(x.dtype), value, out=answered.room(heads, points, width))
                by_head[:, :, n].copy_(here.view(batch, x.shape[-2], points, width))
        return out.view(*x.shape[:-1], width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, slices = ctx.saved_tensors
        d_x = torch.empty_like(x)
        sums = [torch.zeros_like(t) for t in (weight, slices, bias) if t is not None]
        for n in _blocks(x, weight.shape[-1]):
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
                leaf = _leaves(x[..., n, :, :], weight, slices, bias)
                out = _scatter_block(
                    leaf[0], leaf[1], leaf[3] if bias is not None else None, leaf[2], ctx.softmax
                )
            grads = torch.autograd.grad(out, leaf, d_out[..., n, :, :])
            d_x[..., n, :, :] = grads[0]
            for total, grad in zip(sums, grads[1:], strict=True):
                total += grad
        return d_x, sums[0], sums[2] if bias is not None else None, sums[1], None
