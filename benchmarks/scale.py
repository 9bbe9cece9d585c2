"""Large meshes: time and memory of streamed predictions, of queries and of a training step; how they grow."""

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
from benchmarks.timing import Work, peak_mib, resident_mib
from linearno.core.device import Precision
from linearno.data import FieldSpec
from linearno.inference.streaming import Plan, Streamer
from linearno.models import MODELS, build_model
from linearno.nn.protocol import Streamable
from linearno.reproduce.records import Record, new_record
from linearno.training import TrainingConfig

SPEC = FieldSpec(coords=("x", "y", "z"), inputs=("a",), outputs=("u",))
FEW = 10_000  # points of a small mesh, to compare a large one with


@dataclass(frozen=True)
class Setup:
    """What is measured where. Times do not depend on the weights, so they are as drawn."""

    device: torch.device
    width: int
    depth: int
    memory: str
    precision: Precision
    repeats: int = 3
    heads: int = 8
    slices: int = 32

    @classmethod
    def usual(cls, device: torch.device, repeats: int = 3) -> "Setup":
        """A model of a size that the device is made for, and a memory that it has."""
        if device.type == "cuda":
            return cls(device, width=256, depth=8, memory="100GB", precision="bf16", repeats=repeats)
        return cls(device, width=128, depth=4, memory="2GB", precision="fp32", repeats=repeats)

    def model(self) -> Streamable:
        torch.manual_seed(0)
        config = MODELS["linearno"].config.make(self.sizes)
        built = build_model(config, SPEC).to(self.device)
        assert isinstance(built, Streamable)
        return built

    @property
    def sizes(self) -> dict[str, int]:
        return {"width": self.width, "depth": self.depth, "heads": self.heads, "slices": self.slices}

    def streamer(self) -> Streamer:
        return Streamer(self.model().eval(), self.memory, precision=self.precision)

    def facts(self) -> dict[str, Any]:
        threads = torch.get_num_threads() if self.device.type == "cpu" else None
        return {"model": self.sizes, "precision": self.precision, "budget": self.memory, "threads": threads}


@dataclass(frozen=True)
class Measured:
    """Seconds of each call, and bytes that the first one took beside what was there before."""

    seconds: list[float]
    bytes: float | None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def facts(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "bytes": self.bytes}


def measure(setup: Setup, *works: Work) -> list[Measured]:
    """Each of them in turn, as often as the setup says: what else the machine does meets them all alike."""
    cuda = setup.device.type == "cuda"
    seconds: list[list[float]] = [[] for _ in works]
    taken: list[float | None] = []

    def timed(place: int) -> None:
        began = time.perf_counter()
        works[place]()
        if cuda:
            torch.cuda.synchronize(setup.device)
        seconds[place].append(time.perf_counter() - began)

    for place in range(len(works)):
        work = partial(timed, place)
        taken.append(peak_mib(work, setup.device) if cuda else resident_mib(work))
    for _ in range(setup.repeats - 1):
        for place in range(len(works)):
            timed(place)
    sizes = (None if mib is None else mib * 2**20 for mib in taken)
    return [Measured(*found) for found in zip(seconds, sizes, strict=True)]


def mesh(points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates and inputs in host memory, and touched room for the outputs."""
    generator = torch.Generator().manual_seed(0)
    coords, inputs = (torch.rand(points, channels, generator=generator) for channels in (3, 1))
    return coords, inputs, torch.zeros(points, 1)


def bench_predict(id: str, points: int, setup: Setup) -> Record:
    """A prediction at so many points, in seconds, beside one at few points."""
    streamer = setup.streamer()
    few, many = measure(setup, _prediction(streamer, FEW), _prediction(streamer, points))
    details = {
        **setup.facts(),
        "points": points,
        **_planned(streamer.plan(points)),
        **many.facts(),
        "us_a_point": {"here": 1e6 * many.median / points, "at_few": 1e6 * few.median / FEW, "few": FEW},
    }
    return new_record(id, many.median, "s", device=setup.device, details=details)


def _prediction(streamer: Streamer, points: int) -> Work:
    coords, inputs, out = mesh(points)
    streamer.forward(coords[:FEW], inputs[:FEW])  # warms up

    def work() -> None:
        streamer.forward(coords, inputs, out=out)

    return work


def _planned(plan: Plan) -> dict[str, Any]:
    return {"chunk": plan.chunk, "keep": plan.keep, "planned_bytes": plan.bytes, "flops": plan.flops}


def bench_query(id: str, points: int, setup: Setup) -> Record:
    """The time of a query of few points from the states of a mesh, as a part of that of encoding the mesh."""
    streamer = setup.streamer()
    coords, inputs, _ = mesh(points)
    states = streamer.encode(coords[:FEW], inputs[:FEW])

    def encode() -> None:
        states[:] = streamer.encode(coords, inputs)

    def query() -> None:
        streamer.query(coords[:FEW], states, inputs[:FEW])

    for _ in range(2):  # on CUDA the second one is recorded
        query()
    encoded, asked = measure(setup, encode, query)
    facts = {"points": points, "queried": FEW, "encode": encoded.facts(), "query": asked.facts()}
    part = asked.median / encoded.median
    return new_record(
        id, part, "of the time to encode", device=setup.device, details={**setup.facts(), **facts}
    )


def bench_train(id: str, points: int, setup: Setup) -> Record:
    """Memory of the device that a training step on one mesh takes, in GB: weights, moments and data included.

    Blocks run again in the backward pass (`training.recompute`).
    """
    case = StepCase(
        name="scale",
        spec=SPEC,
        points=points,
        model=MODELS["linearno"].config.make(setup.sizes),
        training=TrainingConfig(batch=1, recompute=True, capture=False),
    )
    steps: list[Work] = []

    def from_nothing() -> None:
        steps.append(our_step(case, setup.device, setup.precision))
        for _ in range(2):  # the optimiser's moments come with the first step
            steps[0]()

    (start,) = measure(replace(setup, repeats=1), from_nothing)
    (found,) = measure(setup, steps[0])
    taken = start.bytes
    details = {**setup.facts(), "points": points, "recompute": True, "seconds": found.seconds, "bytes": taken}
    return new_record(id, (taken or 0.0) / 1e9, "GB", device=setup.device, details=details)


def bench_growth(id: str, sizes: Sequence[int], setup: Setup) -> Record:
    """Time and memory at growing meshes; the value is the exponent of the time.

    It is fitted over the meshes of more than one chunk, if there are some: a smaller one takes the time of
    starting its kernels. Memory is what one chunk takes, and so much for each point: the second part has an
    exponent too.
    """
    streamer = setup.streamer()
    found = measure(setup, *(_prediction(streamer, points) for points in sizes))
    rows = [
        {"points": points, **_planned(streamer.plan(points)), **one.facts()}
        for points, one in zip(sizes, found, strict=True)
    ]
    chunked = [place for place, row in enumerate(rows) if row["points"] > row["chunk"]]
    fitted = chunked if len(chunked) > 2 else list(range(len(rows)))
    sizes = [sizes[place] for place in fitted]
    exponents = {"time": exponent(sizes, [found[place].median for place in fitted])}
    details = {**setup.facts(), "rows": rows, "exponents": exponents, "fitted_from": sizes[0]}
    taken = [size for place in fitted if (size := found[place].bytes)]
    if len(taken) == len(sizes) > 2:
        fixed, each = straight_line(sizes, taken)
        details["memory"] = {"fixed": fixed, "a_point": each}
        exponents["memory"] = exponent(sizes, [max(1.0, size - fixed) for size in taken])
    return new_record(
        id, exponents["time"], "exponent of time over points", device=setup.device, details=details
    )


def straight_line(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """a and b of the nearest a + b N, by relative errors; none is negative."""
    weights = 1 / np.asarray(values)
    found, _ = nnls(np.stack([weights, weights * np.asarray(sizes)], axis=1), np.ones(len(weights)))
    return float(found[0]), float(found[1])


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """p of the nearest c N^p, in the log plane."""
    slope, _ = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(slope)
