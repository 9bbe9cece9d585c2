"""Time the generation of a complete data set, including writing."""

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
    workers: Annotated[int, typer.Option(min=1, help="number of processes on a CPU")] = 2,
    device: DeviceOption = "cpu",
    train: Annotated[
        int | None, typer.Option(min=1, help="training samples; as published by default")
    ] = None,
    test: Annotated[int | None, typer.Option(min=1, help="test samples; as published by default")] = None,
    resolution: Annotated[int | None, typer.Option(min=1, help="as published by default")] = None,
    scheme: Annotated[str | None, typer.Option(help="scheme of the solver; its default if not given")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="empty folder to keep the set in; by default the set is deleted")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(help="id of the record; generate/NAME by default, generate/NAME_device on a GPU"),
    ] = None,
    out: OutOption = None,
) -> None:
    """Time the generation of a complete data set.

    Example:

      python -m benchmarks generation darcy --workers 2 --out results
    """
    with user_errors():
        if keep and keep.exists() and any(keep.iterdir()):
            raise UserError(
                f"--keep {keep} is not empty; give an empty folder, so that the whole set is timed"
            )
        benchmark = DATASETS[name]
        if benchmark.generate is None:
            raise UserError(f"{name} has no solver")
        sizes = {split: count for split, count in (("train", train), ("test", test)) if count}
        settings: dict[str, Any] = {
            "sizes": benchmark.config.make({}).sizes | sizes,
            "resolution": resolution or benchmark.resolution,
            "seed": 0,
            "workers": workers,
            "device": device,
            "scheme": scheme,
        }
        samples, start = sum(settings["sizes"].values()), time.perf_counter()
        with tempfile.TemporaryDirectory(dir=".") as temporary, progress_bar(name, samples) as advance:
            folder = keep or Path(temporary)
            benchmark.generate(folder, **settings, tick=advance)
            seconds = time.perf_counter() - start
            card = read_json(folder / "card.json", how="")
        processor = f"{workers} workers" if device == "cpu" else card["device"]
        console.print(f"{samples} samples in {seconds:.1f} s with {processor}: {samples / seconds:.1f}/s")
        record = new_record(
            id or f"generate/{name}" + ("" if device == "cpu" else "_device"),
            seconds,
            "s",
            device=torch.device(device),
            seed=0,
            details=settings | {"device": card["device"], "seconds": seconds, "files": card["files"]},
        )
        keep_record(record, out)
