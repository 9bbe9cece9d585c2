"""Time to generate a benchmark's whole set, including writing it."""

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.cli.shared import OutOption, keep_record
from linearno.cli.shared import DeviceOption, console, progress_bar, user_errors
from linearno.core.atomic_io import read_json
from linearno.core.errors import UserError
from linearno.data import DATASETS
from linearno.reproduce.records import new_record


def generation(
    name: Annotated[
        str, typer.Argument(help="a benchmark with a solver", autocompletion=lambda: list(DATASETS))
    ],
    workers: Annotated[int, typer.Option(min=1, help="processes on a CPU")] = 2,
    device: DeviceOption = "cpu",
    train: Annotated[int | None, typer.Option(min=1, help="samples; as published by default")] = None,
    test: Annotated[int | None, typer.Option(min=1, help="samples; as published by default")] = None,
    resolution: Annotated[int | None, typer.Option(min=1, help="as published by default")] = None,
    scheme: Annotated[str | None, typer.Option(help="of the solver; the usual one by default")] = None,
    keep: Annotated[Path | None, typer.Option(help="empty folder for the set; deleted by default")] = None,
    id: Annotated[
        str | None,
        typer.Option(help="of the record; generate/NAME by default, generate/NAME_device on a GPU"),
    ] = None,
    out: OutOption = None,
) -> None:
    """Time the generation of a benchmark's whole set.

    Example:

      python -m benchmarks generation darcy --workers 2 --out results
    """
    with user_errors():
        if keep and keep.exists() and any(keep.iterdir()):
            raise UserError(f"{keep} is not empty: a set is timed as a whole; remove it or keep elsewhere")
        benchmark = DATASETS[name]
        if benchmark.generate is None:
            raise UserError(f"{name} has no solver")
        given = {split: count for split, count in (("train", train), ("test", test)) if count}
        settings: dict[str, Any] = {
            "sizes": benchmark.config.make({}).sizes | given,
            "resolution": resolution or benchmark.resolution,
            "seed": 0,
            "workers": workers,
            "device": device,
            "scheme": scheme,
        }
        samples, began = sum(settings["sizes"].values()), time.perf_counter()
        with tempfile.TemporaryDirectory(dir=".") as temporary, progress_bar(name, samples) as advance:
            folder = keep or Path(temporary)
            benchmark.generate(folder, **settings, tick=advance)
            seconds = time.perf_counter() - began
            card = read_json(folder / "card.json", how="")
        how = f"{workers} workers" if device == "cpu" else card["device"]
        console.print(f"{samples} samples in {seconds:.1f} s with {how}: {samples / seconds:.1f}/s")
        record = new_record(
            id or f"generate/{name}" + ("" if device == "cpu" else "_device"),
            seconds,
            "s",
            device=torch.device(device),
            seed=0,
            details=settings | {"device": card["device"], "seconds": seconds, "files": card["files"]},
        )
        keep_record(record, out)
