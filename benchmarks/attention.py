"""One attention layer, forward and backward: ours beside others, in one process, on the same inputs.

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
from benchmarks.timing import Candidate, Ceilings, Effort, Results, compete, graphed
from linearno.core.device import Precision, autocast, set_matmul_precision
from linearno.core.provenance import package_version, versions
from linearno.ops import linear_attention
from linearno.reproduce.records import Record, new_record

OURS = "linearno"


@dataclass(frozen=True)
class AttentionShape:
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


class Question(NamedTuple):
    """What all candidates are given. Weights stay in float32, as a training keeps them."""

    x: Tensor  # B N H D
    w_query: Tensor  # D M
    w_key: Tensor
    w_value: Tensor  # D D
    scale_query: Tensor  # H
    scale_key: Tensor


def bench_attention(
    name: str,
    shape: AttentionShape,
    device: torch.device,
    precisions: Sequence[Precision],
    *,
    compiled: bool,
    effort: Effort | None = None,
    ceilings: Ceilings | None = None,
) -> Record:
    """Time every candidate at `shape`; the record's value is ours in the first precision, in ms.

    On CUDA ours and the write-ups run a second time as a replayed graph, and the graph of ours is the value
    where it can be captured. `compiled` adds the write-up through torch.compile.
    """
    torch.compiler.reset()  # a process that compiles many shapes would else fall back to eager in silence
    entries: dict[str, Callable[[], Candidate]] = {}
    for precision in precisions:
        entries |= _entries(shape, device, precision, compiled=compiled)
    eager, graph = (candidate_name(OURS, precisions[0], graph=graph) for graph in (False, True))
    results = compete(entries, device, effort, required=eager)
    ours = graph if graph in results.times else eager
    value = results.times[ours].median
    details = {
        "shape": asdict(shape),
        "ours": ours,
        "largest_relative_difference": {p: disagreement(shape, device, p) for p in precisions},
        **results.facts(),
        **of_ceilings(_cost(shape, precisions[0]), value, precisions[0], ceilings),
    }
    return new_record(
        f"bench/attention/{name}",
        value,
        "ms",
        device=device,
        against=others(results),
        versions=versions() | _peer_version(),
        details=details,
    )


def candidate_name(who: str, precision: Precision, *, compiled: bool = False, graph: bool = False) -> str:
    return ", ".join([who, precision, *["compiled"] * compiled, *["graph"] * graph])


def others(results: Results) -> dict[str, float]:
    """The medians of those that are not ours."""
    return {name: timing.median for name, timing in results.times.items() if not name.startswith(OURS)}


def of_ceilings(
    cost: tuple[float, float | None], milliseconds: float, precision: Precision, ceilings: Ceilings | None
) -> dict[str, Any]:
    """Which part of the device's measured ceilings a time means, for a cost in FLOPs and in bytes."""
    if ceilings is None or precision not in ceilings.tflops:
        return {}
    flops, moved = cost
    part = {"arithmetic": flops / (1e9 * milliseconds * ceilings.tflops[precision])}
    if moved is not None:
        part["memory"] = moved / (1e6 * milliseconds * ceilings.copy_gb)
    return {"ceilings": ceilings.facts(), "of_ceiling": part}


def _cost(shape: AttentionShape, precision: Precision) -> tuple[float, float]:
    """The least work: four products forward, eight backward; x, out and their gradients moved once."""
    rows = shape.batch * shape.points * shape.heads * shape.head_width
    return 24.0 * rows * shape.slices, 4.0 * rows * (2 if precision == "bf16" else 4)


def question(shape: AttentionShape, device: torch.device, precision: Precision) -> Question:
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device)

    x = draw(shape.batch, shape.points, shape.heads, shape.head_width)
    width = shape.head_width
    weights = [draw(width, size) / width**0.5 for size in (shape.slices, shape.slices, width)]
    scales = [torch.full((shape.heads,), 2.0, device=device) for _ in range(2)]  # 1/τ at τ = 0.5
    x = x.bfloat16() if precision == "bf16" else x
    return Question(*(tensor.requires_grad_() for tensor in (x, *weights, *scales)))


def our_attention(q: Question) -> Tensor:
    """The value projection acts on M slices instead of N points: the same result, since it is linear."""
    return linear_attention(
        q.x,
        q.w_query,
        q.w_key,
        q.scale_query,
        q.scale_key,
        mix=lambda slices: slices @ q.w_value.to(slices.dtype),
    )


def disagreement(shape: AttentionShape, device: torch.device, precision: Precision) -> float:
    """The largest difference between ours and the write-up, relative to the largest value."""
    asked = question(shape, device, precision)
    with torch.no_grad(), autocast(precision, device):
        ours, plain = our_attention(asked).float(), plain_attention(*asked).float()
    return ((ours - plain).abs().max() / plain.abs().max()).item()


def _entries(
    shape: AttentionShape, device: torch.device, precision: Precision, *, compiled: bool
) -> Iterator[tuple[str, Callable[[], Candidate]]]:
    """Name and builder of each candidate in one precision."""
    asked = question(shape, device, precision)
    compile_plain = cache(lambda: torch.compile(plain_attention, dynamic=False))
    kinds: list[tuple[str, bool, Callable[[], Callable[[Question], Tensor]]]] = [
        (OURS, False, lambda: our_attention),
        ("plain", False, lambda: lambda q: plain_attention(*q)),
    ]
    if compiled:
        kinds.append(("plain", True, lambda: lambda q: compile_plain()(*q)))
    kinds.append(("PhysicsNeMo", False, partial(physicsnemo_attention, shape, device)))
    for who, through_compiler, make in kinds:
        for graph in (False, True) if device.type == "cuda" else (False,):
            name = candidate_name(who, precision, compiled=through_compiler, graph=graph)
            yield name, partial(_candidate, make, asked, device, precision, graph)


def _candidate(
    make: Callable[[], Callable[[Question], Tensor]],
    asked: Question,
    device: torch.device,
    precision: Precision,
    graph: bool,
) -> Candidate:
    set_matmul_precision(precision)  # a graph is captured here and now
    attend, cotangent = make(), torch.ones_like(asked.x)

    def work() -> None:
        with autocast(precision, device):
            out = attend(asked)
        torch.autograd.grad(out, asked, cotangent.to(out.dtype), allow_unused=True)

    return Candidate(graphed(work, device) if graph else work, precision, replay=graph)


def physicsnemo_attention(shape: AttentionShape, device: torch.device) -> Callable[[Question], Tensor]:
    """The slicing, slice attention and unslicing of PhysicsNeMo's Transolver layer, on the same features.

    Its input and output projections are left out, as ours are. It is another layer than LinearNO's: one
    softmax where LinearNO has two, and attention among the slices.
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
    """Where PhysicsNeMo keeps that layer: from version 2 on, and before."""
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
    found = package_version("nvidia-physicsnemo")
    return {"physicsnemo": found} if found else {}
