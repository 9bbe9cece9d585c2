"""Verbs that reproduce tables and theorems of the paper."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.efficiency import efficiency as efficiency_table
from benchmarks.figures import convergence_figure
from benchmarks.theorem1 import theorem1 as measure_theorem1
from linearno.cli.shared import console, user_errors
from linearno.core.atomic_io import write_bytes, write_json
from linearno.reproduce.records import new_record
from linearno.viz import png_bytes

Json = Annotated[Path | None, typer.Option("--json", help="also write the numbers to this file")]


def efficiency(json: Json = None) -> None:
    """Count parameters and cost of LinearNO and Transolver on six benchmarks and compare with the paper.

    MACs follow the paper's tool: linear layers, convolutions, layer norms and softmax modules, without the
    products of attention. FLOPs count all matrix products, two per multiply-add.

    Example:

      python -m benchmarks efficiency --json efficiency.json
    """
    with user_errors():
        table = efficiency_table()
        if json is not None:
            counts = {b: {m: cost.counts() for m, cost in row.items()} for b, row in table.items()}
            write_json(json, counts)
        printed = Table("benchmark", box=None, pad_edge=False)
        printed.add_column("model", no_wrap=True)
        for column in ("params", "paper M", "MACs G", "paper G", "FLOPs G"):
            printed.add_column(column, justify="right")
        printed.add_column("")
        for benchmark, row in table.items():
            for model, cost in row.items():
                printed.add_row(
                    benchmark,
                    model,
                    f"{cost.params:,}",
                    f"{cost.paper_params:.2f}",
                    f"{cost.macs_paper_convention / 1e9:.2f}",
                    f"{cost.paper_macs:.2f}",
                    f"{cost.flops / 1e9:.2f}",
                    "" if cost.reproduces else "✗",
                )
        console.print(printed)
        console.print("✗ the printed figure does not reproduce: no setting gives both its columns")


def theorem1(
    out: Annotated[Path, typer.Option("--out", "-o", help="file of the figure")] = Path("theorem1.png"),
    json: Json = None,
) -> None:
    """Measure Theorem 1: attention on N random points converges to its integral operator as N^(-1/2).

    With --json the slope is written as a record that `python -m benchmarks results` lists.

    Example:

      python -m benchmarks theorem1 --json results/reproduce/theorem1.json
    """
    with user_errors():
        result = measure_theorem1()
        figure = convergence_figure(result.sizes, result.errors, slope=result.slope)
        write_bytes(out, png_bytes(figure))
        if json is not None:
            record = new_record(
                "reproduce/theorem1",
                result.slope,
                "slope of log error over log N",
                against={"theory": -0.5},
                seed=0,
                details=asdict(result),
            )
            write_json(json, record.model_dump(mode="json"))
        console.print(f"measured slope {result.slope:.3f} (theory -0.5); figure: {out}")
