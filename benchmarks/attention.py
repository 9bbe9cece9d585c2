"""Time one attention layer, forward and backward, against other implementations on the same inputs.

Axes: B batch, N points, H heads, D head width, M slices.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.plain_model import plain_attention
from benchmarks.timing import Candidate, Ceilings, Results, TimingSettings, capture_graph, time_candidates
from linearno.core.device import Precision, autocast, set_matmul_precision
from linearno.core.provenance import package_version, versions
from linearno.ops import linear_attention
from linearno.reproduce.records import Record, new_record

OURS = "linearno"


@dataclass(frozen=True)
class AttentionShape:
    """Sizes B, N, H, D and M of one attention layer."""

    batch: int
    points: int
    heads: int
    head_width: int
    slices: int


SHAPES = {
    "darcy": AttentionShape(4, 7225, 8, 16, 64),
    "airfoil": AttentionShape(4, 11271, 8, 16, 64),
    "elasticity": AttentionShape(1, 972, 8, 16, 64),
    "ns": AttentionShape(2, 4096, 8, 32, 32),
    "pipe": AttentionShape(4, 16641, 8, 16, 64),
    "car": AttentionShape(1, 32186, 8, 32, 32),
    "million": AttentionShape(1, 1_000_000, 8, 32, 32),
}


class AttentionInputs(NamedTuple):
    """Inputs of every candidate. Weights are float32, as in training."""

    x: Tensor  # B N H D
    w_query: Tensor  # D M
    w_key: Tensor  # D M
    w_value: Tensor  # D D
    scale_query: Tensor  # H
    scale_key: Tensor  # H


def bench_attention(
    name: str,
    shape: AttentionShape,
    device: torch.device,
    precisions: Sequence[Precision],
    *,
    compiled: bool,
    settings: TimingSettings | None = None,
    ceilings: Ceilings | None = None,
) -> Record:
    """Time every candidate at `shape`; the record's value is the time of linearno in ms.

    On CUDA each candidate runs eagerly and as a CUDA graph; the value is the graph's time if capture works.

    Args:
        name: last part of the record's id.
        shape: sizes of the layer.
        device: device that computes.
        precisions: precisions to time; the record's value belongs to the first one.
        compiled: also time the plain implementation with torch.compile.
        settings: warm-up calls, rounds and repeats; chosen for the device by default.
        ceilings: measured limits of the device, to report the fraction reached.
    """
    torch.compiler.reset()  # without it, torch.compile silently runs eagerly after a few shapes
    builders: dict[str, Callable[[], Candidate]] = {}
    for precision in precisions:
        builders |= _candidate_builders(shape, device, precision, compiled=compiled)
    eager, graph = (candidate_name(OURS, precisions[0], graph=graph) for graph in (False, True))
    results = time_candidates(builders, device, settings, required=eager)
    ours = graph if graph in results.times else eager
    value = results.times[ours].median
    details = {
        "shape": asdict(shape),
        "ours": ours,
        "largest_relative_difference": {p: relative_difference(shape, device, p) for p in precisions},
        **results.as_dict(),
        **ceiling_fractions(_minimum_cost(shape, precisions[0]), value, precisions[0], ceilings),
    }
    return new_record(
        f"bench/attention/{name}",
        value,
        "ms",
        device=device,
        against=peer_medians(results),
        versions=versions() | _peer_version(),
        details=details,
    )


def candidate_name(
    implementation: str, precision: Precision, *, compiled: bool = False, graph: bool = False
) -> str:
    """Name of a candidate in records, such as "plain, bf16, compiled, graph"."""
    return ", ".join([implementation, precision, *["compiled"] * compiled, *["graph"] * graph])


def peer_medians(results: Results) -> dict[str, float]:
    """Median times of all candidates other than linearno, in ms."""
    return {name: timing.median for name, timing in results.times.items() if not name.startswith(OURS)}


def ceiling_fractions(
    cost: tuple[float, float | None], milliseconds: float, precision: Precision, ceilings: Ceilings | None
) -> dict[str, Any]:
    """Fractions of the device's measured FLOP/s and bandwidth reached by work of `cost` (FLOPs, bytes)."""
    if ceilings is None or precision not in ceilings.tflops:
        return {}
    flops, bytes_moved = cost
    fractions = {"arithmetic": flops / (1e9 * milliseconds * ceilings.tflops[precision])}
    if bytes_moved is not None:
        fractions["memory"] = bytes_moved / (1e6 * milliseconds * ceilings.copy_gb)
    return {"ceilings": ceilings.as_dict(), "of_ceiling": fractions}


def _minimum_cost(shape: AttentionShape, precision: Precision) -> tuple[float, float]:
    """FLOPs of 4 products forward and 8 backward; bytes to move x, the output and their gradients once."""
    values = shape.batch * shape.points * shape.heads * shape.head_width
    return 24.0 * values * shape.slices, 4.0 * values * (2 if precision == "bf16" else 4)


def attention_inputs(shape: AttentionShape, device: torch.device, precision: Precision) -> AttentionInputs:
    """Random inputs and weights that require gradients."""
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device)

    x = draw(shape.batch, shape.points, shape.heads, shape.head_width)
    width = shape.head_width
    weights = [draw(width, size) / width**0.5 for size in (shape.slices, shape.slices, width)]
    scales = [torch.full((shape.heads,), 2.0, device=device) for _ in range(2)]  # 1/τ at τ = 0.5
    x = x.bfloat16() if precision == "bf16" else x
    return AttentionInputs(*(tensor.requires_grad_() for tensor in (x, *weights, *scales)))


def our_attention(q: AttentionInputs) -> Tensor:
    """linearno's attention; the value projection is linear, so it acts on M slices instead of N points."""
    return linear_attention(
        q.x,
        q.w_query,
        q.w_key,
        q.scale_query,
        q.scale_key,
        mix=lambda slices: slices @ q.w_value.to(slices.dtype),
    )


def relative_difference(shape: AttentionShape, device: torch.device, precision: Precision) -> float:
    """Largest difference of linearno and the plain implementation, relative to the largest value."""
    inputs = attention_inputs(shape, device, precision)
    with torch.no_grad(), autocast(precision, device):
        ours, plain = our_attention(inputs).float(), plain_attention(*inputs).float()
    return ((ours - plain).abs().max() / plain.abs().max()).item()


def _candidate_builders(
    shape: AttentionShape, device: torch.device, precision: Precision, *, compiled: bool
) -> Iterator[tuple[str, Callable[[], Candidate]]]:
    """Name and builder of each candidate in one precision."""
    inputs = attention_inputs(shape, device, precision)
    compile_plain = cache(lambda: torch.compile(plain_attention, dynamic=False))
    implementations: list[tuple[str, bool, Callable[[], Callable[[AttentionInputs], Tensor]]]] = [
        (OURS, False, lambda: our_attention),
        ("plain", False, lambda: lambda q: plain_attention(*q)),
    ]
    if compiled:
        implementations.append(("plain", True, lambda: lambda q: compile_plain()(*q)))
    implementations.append(("PhysicsNeMo", False, partial(physicsnemo_attention, shape, device)))
    for implementation, is_compiled, make in implementations:
        for graph in (False, True) if device.type == "cuda" else (False,):
            name = candidate_name(implementation, precision, compiled=is_compiled, graph=graph)
            yield name, partial(_candidate, make, inputs, device, precision, graph)


def _candidate(
    make: Callable[[], Callable[[AttentionInputs], Tensor]],
    inputs: AttentionInputs,
    device: torch.device,
    precision: Precision,
    graph: bool,
) -> Candidate:
    set_matmul_precision(precision)  # capture below uses the current setting
    attend, cotangent = make(), torch.ones_like(inputs.x)

    def work() -> None:
        with autocast(precision, device):
            out = attend(inputs)
        torch.autograd.grad(out, inputs, cotangent.to(out.dtype), allow_unused=True)

    return Candidate(capture_graph(work, device) if graph else work, precision, replay=graph)


def physicsnemo_attention(shape: AttentionShape, device: torch.device) -> Callable[[AttentionInputs], Tensor]:
    """PhysicsNeMo's Transolver attention (slice, attend, unslice) without input and output projections.

    A different layer than LinearNO's: one softmax instead of two, and attention among the slices.
    """
    layer = _physicsnemo().PhysicsAttentionIrregularMesh(
        dim=shape.heads * shape.head_width,
        heads=shape.heads,
        dim_head=shape.head_width,
        slice_num=shape.slices,
        use_te=False,
    )
    layer.in_project_x, layer.in_project_fx, layer.out_linear = (nn.Identity() for _ in range(3))
    layer = layer.to(device)
    return lambda q: layer(q.x.flatten(-2)).view_as(q.x)


def _physicsnemo() -> Any:
    """Import the module of PhysicsNeMo's attention layer: its path from version 2, then the earlier one."""
    for name in (
        "physicsnemo.nn.module.physics_attention",
        "physicsnemo.models.transolver.Physics_Attention",
    ):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("physicsnemo"):
                raise RuntimeError(f"installed without {error.name}") from None
    raise RuntimeError("not installed")


def _peer_version() -> dict[str, str]:
    version = package_version("nvidia-physicsnemo")
    return {"physicsnemo": version} if version else {}
