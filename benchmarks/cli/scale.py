"""`python -m benchmarks scale`: meshes of any size, in time and memory."""

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


class What(StrEnum):
    predict_10M = "predict/10M"
    predict_100M = "predict/100M"
    train_4M = "train/4M"
    cpu_1M = "cpu/1M"
    query = "query"
    growth = "growth"


DEFAULTS = {
    "cpu": [What.cpu_1M, What.query, What.growth],
    "cuda": [What.predict_10M, What.predict_100M, What.train_4M, What.query, What.growth],
}


def scale(
    what: Annotated[
        list[What] | None,
        typer.Option(
            metavar="NAME",
            help="predict/10M, predict/100M, train/4M, cpu/1M, query or growth; may be repeated; "
            "default: all for the device",
        ),
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=1, help="points of a mesh, for growth; may be repeated")
    ] = None,
    device: DeviceOption = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="timed calls; the record has their median")] = 3,
    figure: Annotated[Path | None, typer.Option(help="also draw the growth, into this .png")] = None,
    out: OutOption = None,
) -> None:
    """Measure large meshes: predictions, a query, a training step, and the cost against the points.

    Points are read from host memory and fields are written there. On a GPU the model has width 256 and
    depth 8 and computes in bf16, on a CPU width 128 and depth 4 in fp32; 8 heads and 32 slices in both.

    Example:

      python -m benchmarks scale --what cpu/1M --device cpu --out results
    """
    with user_errors():
        where = resolve_device(device)
        chosen = what or DEFAULTS[where.type]
        for one in chosen:
            _require_device(one, where.type)
        console.print(f"on {device_name(where)}")
        setup = Setup.usual(where, repeats)
        for one in chosen:
            record = _measure(one, setup, size or SIZES)
            console.print(_describe(record))
            if one == What.growth and figure is not None:
                _draw(record, figure)
            keep_record(record, out)


def _require_device(what: What, kind: str) -> None:
    if what == What.cpu_1M and kind != "cpu":
        raise UserError(f"{what} is measured on a CPU; give --device cpu")
    if what in (What.predict_10M, What.predict_100M, What.train_4M) and kind != "cuda":
        raise UserError(f"{what} wants a GPU; choose another --what, or --device cuda")


def _measure(what: What, setup: Setup, sizes: list[int]) -> Record:
    if what == What.growth:
        roomy = setup if setup.device.type == "cuda" else replace(setup, memory="8GB")  # nothing on the disk
        return bench_growth(f"scale/growth/{setup.device.type}", sizes, roomy)
    if what == What.query:
        return bench_query("scale/query" + ("" if setup.device.type == "cuda" else "/cpu"), MILLION, setup)
    points = {What.predict_10M: 10, What.predict_100M: 100, What.train_4M: 4, What.cpu_1M: 1}[what] * MILLION
    bench = bench_train if what == What.train_4M else bench_predict
    return bench(f"scale/{what}", points, setup)


def _describe(record: Record) -> str:
    found = record.details
    line = f"{record.id}: {record.value:.4g} {record.unit}"
    if "rows" in found:
        return "\n".join([line, *(_row(row) for row in found["rows"])])
    return line if found.get("bytes") is None else f"{line}; {format_bytes(found['bytes'])} of memory"


def _row(row: dict[str, object]) -> str:
    seconds, taken = row["seconds"], row["bytes"]
    assert isinstance(seconds, list)
    memory = f"; {format_bytes(taken)}" if isinstance(taken, float) else ""
    return f"  {row['points']:,} points: {statistics.median(seconds):.4g} s{memory} ({row['keep']})"


def _draw(record: Record, path: Path) -> None:
    rows = record.details["rows"]
    taken = [row["bytes"] for row in rows]
    picture = growth_figure(
        [row["points"] for row in rows],
        [statistics.median(row["seconds"]) for row in rows],
        [size / 1e9 for size in taken] if all(taken) else None,
        exponent=record.value,
        fitted_from=record.details["fitted_from"],
    )
    write_bytes(path, png_bytes(picture))
    console.print(f"picture: {path}")
