"""Time and memory of streamed predictions, queries and training steps on large meshes."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from benchmarks.step import StepCase, our_step
from benchmarks.timing import Work, peak_mib, peak_resident_mib
from linearno.core.device import Precision
from linearno.data import FieldSpec
from linearno.inference.streaming import Plan, Streamer
from linearno.models import MODELS, build_model
from linearno.nn.protocol import Streamable
from linearno.reproduce.records import Record, new_record
from linearno.training import TrainingConfig

SPEC = FieldSpec(coords=("x", "y", "z"), inputs=("a",), outputs=("u",))
SMALL_MESH_POINTS = 10_000


@dataclass(frozen=True)
class Setup:
    """Device, model and memory budget of a measurement. Weights are random: times do not depend on them.

    Args:
        device: device that computes.
        width: feature width W.
        depth: number of blocks.
        memory: budget of the streamer, such as "2GB".
        precision: precision of the products.
        repeats: number of timed calls.
        heads: number of attention heads H.
        slices: number of slices M.
    """

    device: torch.device
    width: int
    depth: int
    memory: str
    precision: Precision
    repeats: int = 3
    heads: int = 8
    slices: int = 32

    @classmethod
    def default(cls, device: torch.device, repeats: int = 3) -> "Setup":
        """Model size and memory budget for a GPU or a CPU."""
        if device.type == "cuda":
            return cls(device, width=256, depth=8, memory="100GB", precision="bf16", repeats=repeats)
        return cls(device, width=128, depth=4, memory="2GB", precision="fp32", repeats=repeats)

    def model(self) -> Streamable:
        """LinearNO with random weights on the device."""
        torch.manual_seed(0)
        config = MODELS["linearno"].config.make(self.sizes)
        model = build_model(config, SPEC).to(self.device)
        assert isinstance(model, Streamable)
        return model

    @property
    def sizes(self) -> dict[str, int]:
        return {"width": self.width, "depth": self.depth, "heads": self.heads, "slices": self.slices}

    def streamer(self) -> Streamer:
        return Streamer(self.model().eval(), self.memory, precision=self.precision)

    def as_dict(self) -> dict[str, Any]:
        threads = torch.get_num_threads() if self.device.type == "cpu" else None
        return {"model": self.sizes, "precision": self.precision, "budget": self.memory, "threads": threads}


@dataclass(frozen=True)
class Measurement:
    """Seconds of each call, and bytes allocated by the first call; None if unknown."""

    seconds: list[float]
    bytes: float | None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "bytes": self.bytes}


def measure(setup: Setup, *functions: Work) -> list[Measurement]:
    """Time the functions in alternating rounds, so that other load on the machine affects all equally."""
    cuda = setup.device.type == "cuda"
    seconds: list[list[float]] = [[] for _ in functions]
    memory: list[float | None] = []

    def timed(index: int) -> None:
        start = time.perf_counter()
        functions[index]()
        if cuda:
            torch.cuda.synchronize(setup.device)
        seconds[index].append(time.perf_counter() - start)

    for index in range(len(functions)):
        work = partial(timed, index)
        memory.append(peak_mib(work, setup.device) if cuda else peak_resident_mib(work))
    for _ in range(setup.repeats - 1):
        for index in range(len(functions)):
            timed(index)
    sizes = (None if mib is None else mib * 2**20 for mib in memory)
    return [Measurement(*found) for found in zip(seconds, sizes, strict=True)]


def mesh(points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random coordinates (N, 3) and inputs (N, 1) in host memory, and a zeroed output array (N, 1)."""
    generator = torch.Generator().manual_seed(0)
    coords, inputs = (torch.rand(points, channels, generator=generator) for channels in (3, 1))
    return coords, inputs, torch.zeros(points, 1)


def bench_predict(id: str, points: int, setup: Setup) -> Record:
    """Time a streamed prediction at `points` points, and one on a small mesh for comparison."""
    streamer = setup.streamer()
    small, large = measure(setup, _prediction(streamer, SMALL_MESH_POINTS), _prediction(streamer, points))
    details = {
        **setup.as_dict(),
        "points": points,
        **_plan_as_dict(streamer.plan(points)),
        **large.as_dict(),
        "us_a_point": {
            "here": 1e6 * large.median / points,
            "at_few": 1e6 * small.median / SMALL_MESH_POINTS,
            "few": SMALL_MESH_POINTS,
        },
    }
    return new_record(id, large.median, "s", device=setup.device, details=details)


def _prediction(streamer: Streamer, points: int) -> Work:
    coords, inputs, out = mesh(points)
    streamer.forward(coords[:SMALL_MESH_POINTS], inputs[:SMALL_MESH_POINTS])  # warm-up

    def work() -> None:
        streamer.forward(coords, inputs, out=out)

    return work


def _plan_as_dict(plan: Plan) -> dict[str, Any]:
    return {"chunk": plan.chunk, "keep": plan.keep, "planned_bytes": plan.bytes, "flops": plan.flops}


def bench_query(id: str, points: int, setup: Setup) -> Record:
    """Time a query at `SMALL_MESH_POINTS` points relative to encoding a mesh of `points` points."""
    streamer = setup.streamer()
    coords, inputs, _ = mesh(points)
    states = streamer.encode(coords[:SMALL_MESH_POINTS], inputs[:SMALL_MESH_POINTS])

    def encode() -> None:
        states[:] = streamer.encode(coords, inputs)

    def query() -> None:
        streamer.query(coords[:SMALL_MESH_POINTS], states, inputs[:SMALL_MESH_POINTS])

    for _ in range(2):  # on CUDA the second call is captured
        query()
    encode_time, query_time = measure(setup, encode, query)
    facts = {
        "points": points,
        "queried": SMALL_MESH_POINTS,
        "encode": encode_time.as_dict(),
        "query": query_time.as_dict(),
    }
    ratio = query_time.median / encode_time.median
    return new_record(
        id, ratio, "of the time to encode", device=setup.device, details={**setup.as_dict(), **facts}
    )


def bench_train(id: str, points: int, setup: Setup) -> Record:
    """Device memory of a training step on one mesh in GB, including weights, moments and data.

    Blocks are recomputed in the backward pass (`training.recompute`).
    """
    case = StepCase(
        name="scale",
        spec=SPEC,
        points=points,
        model=MODELS["linearno"].config.make(setup.sizes),
        training=TrainingConfig(batch=1, recompute=True, capture=False),
    )
    steps: list[Work] = []

    def build_and_step() -> None:
        steps.append(our_step(case, setup.device, setup.precision))
        for _ in range(2):  # the first step allocates the moments
            steps[0]()

    (first,) = measure(replace(setup, repeats=1), build_and_step)
    (measured,) = measure(setup, steps[0])
    memory = first.bytes
    details = {
        **setup.as_dict(),
        "points": points,
        "recompute": True,
        "seconds": measured.seconds,
        "bytes": memory,
    }
    return new_record(id, (memory or 0.0) / 1e9, "GB", device=setup.device, details=details)


def bench_growth(id: str, sizes: Sequence[int], setup: Setup) -> Record:
    """Time and memory of predictions on meshes of increasing size; the value is the exponent p of time ~ N^p.

    Fits use meshes of more than one chunk if there are three or more, because the launch of kernels dominates
    smaller ones. Memory is fitted as a + b N, then b N as a power of N.
    """
    streamer = setup.streamer()
    measured = measure(setup, *(_prediction(streamer, points) for points in sizes))
    rows = [
        {"points": points, **_plan_as_dict(streamer.plan(points)), **each.as_dict()}
        for points, each in zip(sizes, measured, strict=True)
    ]
    chunked = [index for index, row in enumerate(rows) if row["points"] > row["chunk"]]
    fitted = chunked if len(chunked) > 2 else list(range(len(rows)))
    sizes = [sizes[index] for index in fitted]
    exponents = {"time": exponent(sizes, [measured[index].median for index in fitted])}
    details = {**setup.as_dict(), "rows": rows, "exponents": exponents, "fitted_from": sizes[0]}
    memory = [size for index in fitted if (size := measured[index].bytes)]
    if len(memory) == len(sizes) > 2:
        fixed, per_point = fit_line(sizes, memory)
        details["memory"] = {"fixed": fixed, "a_point": per_point}
        exponents["memory"] = exponent(sizes, [max(1.0, size - fixed) for size in memory])
    return new_record(
        id, exponents["time"], "exponent of time over points", device=setup.device, details=details
    )


def fit_line(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """Fit a + b N with a, b ≥ 0 by least squares of relative errors."""
    weights = 1 / np.asarray(values)
    line, _ = nnls(np.stack([weights, weights * np.asarray(sizes)], axis=1), np.ones(len(weights)))
    return float(line[0]), float(line[1])


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Exponent p of the fit c N^p to the logarithms."""
    slope, _ = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(slope)
