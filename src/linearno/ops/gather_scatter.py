"""Gather points into slices and scatter slices to points, block by block without an N×M tensor.

Axes: … leading axes, N points, H heads, D head width, E value width (mostly D), M slices, K parts,
S segments of a ragged batch x (1, T, H, D) with T = Σ N_i.

Scores are computed from features and a small weight: score = (x w + bias) · scale. Backward passes recompute
them block by block.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linearno.core.errors import UserError
from linearno.ops.backend import takes_kernel
from linearno.ops.chunked import BlockGather, BlockScatter, gather_whole, scatter_block
from linearno.ops.ragged import Segments, offset_list, sizes_of, split_segments
from linearno.ops.side_streams import record_shared_use
from linearno.ops.state import Bias, Points, Project, Scale, Score, State, Values, Weight
from linearno.ops.weight_cache import cached_ones

MAX_SLICES, MAX_HEAD_WIDTH = 256, 64  # limits of the kernels


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

    Args:
        x: features (…, N, H, D).
        weight: projection (D, M) to scores.
        scale: inverse temperature (H,) of each head; None: 1.
        bias: bias (M,) of the scores.
        value: values (…, N, H, E) to average; None: x.
        project: linear map (E, F) of the values, applied to the M means instead of the N points.
        score: map of the scores over M before ψ. "log_softmax" gives Transolver's softmax over M divided by
            its sum over N: w / Σw = softmax_N(log w) for w = softmax_M.
        segments: offsets of packed meshes; the state then has an entry per mesh.
    """
    return gather_with_passthrough(
        x, weight, scale, bias=bias, value=value, project=project, score=score, segments=segments
    )[1]


def gather_with_passthrough(
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
    """x and `gather(x, …)`.

    If the next layer reads the returned x, the backward kernel adds that gradient to its own, in one write.
    """
    if takes_kernel("gather", x, _refusal(x, weight)):
        from linearno.ops.attention_autograd import FusedGather

        kernel_project = None if _exceeds_shared_memory(x, weight) else project
        flat_value = None if value is None else _with_one_batch_axis(value.to(x.dtype))
        scale, bias = _scale_or_ones(x, scale), None if bias is None else bias.contiguous()
        uses = record_shared_use(weight, scale, bias, kernel_project)
        maximum, weight_sum, mean, passthrough = FusedGather.apply(
            _with_one_batch_axis(x),
            flat_value,
            weight,
            scale,
            bias,
            kernel_project,
            score,
            *_mesh_offsets(x, segments),
            uses,
        )
        meshes = x.shape[:-3] if segments is None else (len(segments) - 1,)
        state = State(*(part.view(*meshes, *part.shape[1:]) for part in (maximum, weight_sum, mean)))
        x, project = passthrough.view(x.shape), None if kernel_project is not None else project
    elif segments is not None:
        values = [None] * (len(segments) - 1) if value is None else split_segments(value, segments)
        states = [
            gather(part, weight, scale, bias=bias, value=mesh_value, project=project, score=score)
            for part, mesh_value in zip(split_segments(x, segments), values, strict=True)
        ]
        return x, State(*(torch.cat(per_mesh) for per_mesh in zip(*states, strict=True)))
    else:
        weight, bias = _per_head(x, weight, scale, bias)
        gather_all = _checkpointed(gather_whole) if _use_single_block() else BlockGather.apply
        state = State(*gather_all(x, x if value is None else value, weight, bias, score))
    if project is None:
        return x, state
    return x, state._replace(value=state.value @ project.to(state.value.dtype))


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
    """Scatter slices to points: out_n = Σ_m φ_nm value_m,  φ = softmax over M of the scores (Eq. 8).

    Args:
        x: features (…, N, H, D).
        weight: projection (D, M) to scores.
        scale: inverse temperature (H,) of each head; None: 1.
        state: slices to scatter.
        bias: bias (M,) of the scores.
        normaliser: state gathered with the same weight; φ is then the softmax over its points.
        segments: offsets of packed meshes, each with its entry of the state.
    """
    refusal = _refusal(x, weight) if normaliser is None else "φ normalised over the points has no kernel"
    if takes_kernel("scatter", x, refusal):
        from linearno.ops.attention_autograd import FusedScatter

        slices = state.value.reshape(-1, *state.value.shape[-3:]).float().contiguous()
        scale, bias = _scale_or_ones(x, scale), None if bias is None else bias.contiguous()
        uses = record_shared_use(weight, scale, bias)
        out = FusedScatter.apply(
            _with_one_batch_axis(x), weight, scale, bias, slices, *_mesh_offsets(x, segments, state), uses
        )
        return out.view(*x.shape[:-1], -1)
    if segments is not None:

        def scatter_mesh(x: Tensor, state: State, normaliser: State | None = None) -> Tensor:
            return scatter(x, weight, scale, state, bias=bias, normaliser=normaliser)

        return map_segments(
            scatter_mesh, segments, [x], [state] if normaliser is None else [state, normaliser]
        )
    weight, bias = _per_head(x, weight, scale, bias)
    if normaliser is not None:  # exp(score − max) / sum = exp(score − (max + log(sum)))
        shift = normaliser.max + normaliser.sum.log()
        bias = bias - shift if bias is not None else -shift
    scatter_all = _checkpointed(scatter_block) if _use_single_block() else BlockScatter.apply
    return scatter_all(x, weight, bias, state.value, normaliser is None)


def _use_single_block() -> bool:
    """Whether all points form one block: in exported graphs, whose N varies, and in compiled training, which
    cannot trace the backward pass of blocks."""
    return torch.compiler.is_exporting() or (torch.compiler.is_compiling() and torch.is_grad_enabled())


def _checkpointed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Recompute the N×M scores in the backward pass of compiled training instead of storing them."""
    if torch.compiler.is_exporting():
        return function
    return partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)


def map_segments(
    function: Callable[..., Tensor],
    segments: Segments | None,
    points: Sequence[Tensor],
    states: Sequence[State],
) -> Tensor:
    """`function(*points, *states)`; with segments, concatenate its results for each mesh.

    Args:
        function: of points (1, N_i, …) and states of one mesh.
        segments: offsets of packed meshes, or None.
        points: tensors (1, T, …) to split into meshes.
        states: states with an entry per mesh.
    """
    if segments is None:
        return function(*points, *states)
    mesh_states = [list(zip(*(part.split(1) for part in state), strict=True)) for state in states]
    if any(len(meshes) != len(segments) - 1 for meshes in mesh_states):
        raise UserError(f"expected states of {len(segments) - 1} meshes, got states of {len(mesh_states[0])}")
    per_mesh = zip(*(split_segments(x, segments) for x in points), *mesh_states, strict=True)
    count = len(points)
    return torch.cat(
        [function(*part[:count], *(State(*s) for s in part[count:])) for part in per_mesh], dim=1
    )


def _refusal(x: Tensor, weight: Tensor) -> str | None:
    """Why the kernels do not support these inputs; None if they do."""
    width, slices = weight.shape
    if x.dtype not in (torch.float32, torch.bfloat16):
        return f"there are kernels for float32 and bfloat16, not {x.dtype}"
    if not 1 <= slices <= MAX_SLICES or not 1 <= width <= MAX_HEAD_WIDTH:
        limits = f"{MAX_SLICES} slices and head width {MAX_HEAD_WIDTH}"
        return f"kernels take up to {limits}, not {slices} and {width}"
    return None if x.numel() else "there are no points"


def _exceeds_shared_memory(x: Tensor, weight: Tensor) -> bool:
    """Whether the projection of the slices would exceed the shared memory of a multiprocessor."""
    width, slices = weight.shape
    return x.dtype == torch.float32 and width > MAX_HEAD_WIDTH // 2 and slices > MAX_SLICES // 2


def _mesh_offsets(
    x: Tensor, segments: Segments | None, state: State | None = None
) -> tuple[Tensor | None, int]:
    """The offsets of packed meshes on the device, and the largest number of points of a mesh."""
    if segments is None:
        return None, 0
    sizes = sizes_of(segments, x.shape[-3])
    if state is not None and len(state.value) != len(sizes):
        raise UserError(f"expected states of {len(sizes)} meshes, got states of {len(state.value)}")
    return _offsets_on(x.device, tuple(offset_list(segments))), max(sizes)


@lru_cache(maxsize=64)
def _offsets_on(device: torch.device, offsets: tuple[int, ...]) -> Tensor:
    """Copy offsets to the device; cached, as every layer uses the same ones."""
    host_offsets = torch.tensor(offsets)
    return host_offsets.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host_offsets


def _with_one_batch_axis(x: Tensor) -> Tensor:
    """Contiguous, with one batch axis."""
    return x.reshape(x.shape[:-3].numel(), *x.shape[-3:]).contiguous()


def _scale_or_ones(x: Tensor, scale: Tensor | None) -> Tensor:
    return cached_ones(x, x.shape[-2]) if scale is None else scale.float().contiguous()


def _per_head(
    x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Multiply weight (H, D, M) and bias (H, M) by the scale of each head."""
    scale = x.new_ones(x.shape[-2]) if scale is None else scale.to(x.dtype)
    weight = scale[:, None, None] * weight.to(x.dtype)
    return weight, None if bias is None else scale[:, None] * bias.to(x.dtype)
