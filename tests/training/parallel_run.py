"""Runs that are the same on one process and on several. As a script, started once for each process with what
`torchrun` sets in the environment: `parallel_run.py FOLDER SCENARIO…` plays them together."""

import os
import signal
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from packed_run import SOME, network, packed_data, packed_fit
from tiny_run import EVERYTHING, SPEC, Tiny, at_forward, tiny_data, tiny_fit

from linearno.core.atomic_io import write_json, write_tensors
from linearno.core.errors import UserError
from linearno.data.field_data import FieldData
from linearno.training import Interrupted, LossConfig, TrainingConfig, parallel
from linearno.training.fit import _Run

CASES = {  # of 13 samples; a last batch of 1 leaves the second process without any
    f"{reduction}-{batch}": TrainingConfig(
        epochs=3, batch=batch, lr=1e-2, clip=0.1, loss=LossConfig(reduction=reduction)
    )
    for reduction in ("sum", "mean")
    for batch in (4, 5)
} | {
    "all": EVERYTHING,  # accumulation, averaged weights, validation, slopes
    "mean-accumulate": EVERYTHING.model_copy(
        update={"batch": 3, "validation": 1, "clip": None, "loss": LossConfig(reduction="mean")}
    ),
    "packed": SOME,  # meshes of different sizes, some points of each
}


def exact(model: Tiny) -> Tiny:
    """Without dropout, and in float64: what differs is not rounding."""
    model.layers[2].p = 0.0
    return model.double()


def exact_fit(folder: Path, config: TrainingConfig, model: Tiny | None = None) -> Tiny:
    data = tiny_data()
    double = FieldData(SPEC, data.coords.double(), data.inputs.double(), data.targets.double())
    return tiny_fit(folder, config, model=exact(model or Tiny()), data=double)


@contextmanager
def watched(kept: list):
    """Collect losses and gradient norms of every step."""
    record = _Run._record

    def keep(run, validation):
        kept.append(torch.stack([run.state.losses, run.state.grad_norms]))
        return record(run, validation)

    _Run._record = keep
    try:
        yield
    finally:
        _Run._record = record


def run_case(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """Final weights, and the losses and gradient norms of all steps."""
    steps: list[torch.Tensor] = []
    with watched(steps):
        if name == "packed":
            double = packed_data(kind=torch.float64)
            model = packed_fit(folder, CASES[name], model=network().double(), data=double)
        else:
            model = exact_fit(folder, CASES[name])
    return model.state_dict() | {"steps": torch.cat(steps, dim=1)}


def stopped(folder: Path, fit, sender: int, forward: int, number: signal.Signals) -> None:
    """Let one process get a signal; all note where they stopped."""
    mine = parallel.rank() == sender
    model = at_forward(forward, lambda: os.kill(os.getpid(), number)) if mine else Tiny()
    try:
        fit(folder, EVERYTHING, model=model)
    except Interrupted as stop:
        write_json(folder / f"stop-{parallel.rank()}.json", [stop.signal, stop.epoch, stop.step])


def equal(folder: Path) -> None:
    for name in CASES:
        write_tensors(folder / f"{name}-{parallel.rank()}.safetensors", run_case(folder / name, name))


def signals(folder: Path) -> None:
    """Dropout is on: each process has random numbers of its own."""
    whole = tiny_fit(folder / "whole")
    stopped(folder / "parts", tiny_fit, sender=1, forward=8, number=signal.SIGTERM)
    parts = tiny_fit(folder / "parts", model=Tiny(seed=99))
    for name, model in {"whole": whole, "parts": parts}.items():
        write_tensors(folder / f"{name}-{parallel.rank()}.safetensors", model.state_dict())


def go_on(folder: Path) -> None:
    stopped(folder, exact_fit, sender=0, forward=9, number=signal.SIGINT)


def other_weights(folder: Path) -> None:
    refused(folder, Tiny(seed=parallel.rank()))


def not_finite(folder: Path) -> None:
    def poison() -> None:
        with torch.no_grad():
            model.layers[0].weight.fill_(torch.nan)

    model = at_forward(8, poison) if parallel.rank() == 1 else Tiny()
    refused(folder, model)


def refused(folder: Path, model: Tiny) -> None:
    try:
        tiny_fit(folder, model=model)
    except UserError as error:
        write_json(folder / f"error-{parallel.rank()}.json", str(error))


def hang(folder: Path) -> None:
    """The second process is too slow for the first, which ends: the second then meets a dead one."""
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    tiny_fit(folder, model=at_forward(8, lambda: time.sleep(3)) if parallel.rank() == 1 else Tiny())


SCENARIOS = {f.__name__: f for f in (equal, signals, go_on, other_weights, not_finite, hang)}


def main() -> int:
    folder, *names = sys.argv[1:]
    try:
        with parallel.processes("cpu"):
            for name in names:
                SCENARIOS[name](Path(folder) / name)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
