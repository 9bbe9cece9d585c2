"""`python -m benchmarks scale`: time and memory on large meshes."""

import statistics
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.shared import OutOption, keep_record
from benchmarks.figures import growth_figure
from benchmarks.scale import Setup, bench_growth, bench_predict, bench_query, bench_train
from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.core.atomic_io import write_bytes
from linearno.core.byte_sizes import format_bytes
from linearno.core.device import device_name, resolve_device
from linearno.core.errors import UserError
from linearno.reproduce.records import Record
from linearno.viz import png_bytes

MILLION = 10**6
SIZES = [10_000, 31_623, 100_000, 316_228, MILLION, 3_162_278, 10 * MILLION]


class ScaleCase(StrEnum):
    predict_10M = "predict/10M"
    predict_100M = "predict/100M"
    train_4M = "train/4M"
    cpu_1M = "cpu/1M"
    query = "query"
    growth = "growth"


DEFAULTS = {
    "cpu": [ScaleCase.cpu_1M, ScaleCase.query, ScaleCase.growth],
    "cuda": [
        ScaleCase.predict_10M,
        ScaleCase.predict_100M,
        ScaleCase.train_4M,
        ScaleCase.query,
        ScaleCase.growth,
    ],
}


def scale(
    what: Annotated[
        list[ScaleCase] | None,
        typer.Option(
            metavar="NAME",
            help="predict/10M, predict/100M, train/4M, cpu/1M, query or growth; may be repeated; "
            "default: all for the device",
        ),
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=1, help="number of points, for growth; may be repeated")
    ] = None,
    device: DeviceOption = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="timed calls; the record has the median")] = 3,
    figure: Annotated[Path | None, typer.Option(help="also draw the growth to this .png")] = None,
    out: OutOption = None,
) -> None:
    """Measure large meshes: predictions, a query, a training step, and growth of the cost with the points.

    Points are read from host memory, and fields are written to it. On a GPU the model has width 256 and
    depth 8 and computes in bf16, on a CPU width 128 and depth 4 in fp32; both have 8 heads and 32 slices.

    Example:

      python -m benchmarks scale --what cpu/1M --device cpu --out results
    """
    with user_errors():
        target = resolve_device(device)
        cases = what or DEFAULTS[target.type]
        for case in cases:
            _require_device(case, target.type)
        console.print(f"on {device_name(target)}")
        setup = Setup.default(target, repeats)
        for case in cases:
            record = _measure(case, setup, size or SIZES)
            console.print(_describe(record))
            if case == ScaleCase.growth and figure is not None:
                _draw_growth(record, figure)
            keep_record(record, out)


def _require_device(case: ScaleCase, kind: str) -> None:
    if case == ScaleCase.cpu_1M and kind != "cpu":
        raise UserError(f"{case} is measured on a CPU; give --device cpu")
    if case in (ScaleCase.predict_10M, ScaleCase.predict_100M, ScaleCase.train_4M) and kind != "cuda":
        raise UserError(f"{case} needs a GPU; choose another --what, or --device cuda")


def _measure(case: ScaleCase, setup: Setup, sizes: list[int]) -> Record:
    if case == ScaleCase.growth:
        if setup.device.type != "cuda":
            setup = replace(setup, memory="8GB")  # enough to buffer nothing on disk
        return bench_growth(f"scale/growth/{setup.device.type}", sizes, setup)
    if case == ScaleCase.query:
        return bench_query("scale/query" + ("" if setup.device.type == "cuda" else "/cpu"), MILLION, setup)
    points = {
        ScaleCase.predict_10M: 10,
        ScaleCase.predict_100M: 100,
        ScaleCase.train_4M: 4,
        ScaleCase.cpu_1M: 1,
    }[case] * MILLION
    bench = bench_train if case == ScaleCase.train_4M else bench_predict
    return bench(f"scale/{case}", points, setup)


def _describe(record: Record) -> str:
    details = record.details
    line = f"{record.id}: {record.value:.4g} {record.unit}"
    if "rows" in details:
        return "\n".join([line, *(_describe_row(row) for row in details["rows"])])
    return line if details.get("bytes") is None else f"{line}; {format_bytes(details['bytes'])} of memory"


def _describe_row(row: dict[str, object]) -> str:
    seconds, size = row["seconds"], row["bytes"]
    assert isinstance(seconds, list)
    memory = f"; {format_bytes(size)}" if isinstance(size, float) else ""
    return f"  {row['points']:,} points: {statistics.median(seconds):.4g} s{memory} ({row['keep']})"


def _draw_growth(record: Record, path: Path) -> None:
    rows = record.details["rows"]
    sizes = [row["bytes"] for row in rows]
    figure = growth_figure(
        [row["points"] for row in rows],
        [statistics.median(row["seconds"]) for row in rows],
        [size / 1e9 for size in sizes] if all(sizes) else None,
        exponent=record.value,
        fitted_from=record.details["fitted_from"],
    )
    write_bytes(path, png_bytes(figure))
    console.print(f"figure: {path}")
