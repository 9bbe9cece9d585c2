"""`python -m benchmarks`: tables and figures of the paper, each by its name."""

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
    """Count parameters and cost of LinearNO and Transolver on six benchmarks, beside the published figures.

    MACs are those of the paper's tool: linear layers, convolutions, layer norms and softmax modules, without
    the products of attention. FLOPs count all matrix products, two for a multiply-add.

    Example:

      python -m benchmarks efficiency --json efficiency.json
    """
    with user_errors():
        table = efficiency_table()
        if json is not None:
            counted = {b: {m: cost.counted() for m, cost in row.items()} for b, row in table.items()}
            write_json(json, counted)
        shown = Table("benchmark", box=None, pad_edge=False)
        shown.add_column("model", no_wrap=True)
        for column in ("params", "paper M", "MACs G", "paper G", "FLOPs G"):
            shown.add_column(column, justify="right")
        shown.add_column("")
        for benchmark, row in table.items():
            for model, cost in row.items():
                shown.add_row(
                    benchmark,
                    model,
                    f"{cost.params:,}",
                    f"{cost.paper_params:.2f}",
                    f"{cost.macs_paper_convention / 1e9:.2f}",
                    f"{cost.paper_macs:.2f}",
                    f"{cost.flops / 1e9:.2f}",
                    "" if cost.reproduces else "✗",
                )
        console.print(shown)
        console.print("✗ the printed figure does not reproduce: no setting gives both its columns")


def theorem1(
    out: Annotated[Path, typer.Option("--out", "-o", help="the figure")] = Path("theorem1.png"),
    json: Json = None,
) -> None:
    """Measure Theorem 1: attention on N random points converges to its integral operator as N^(-1/2).

    With --json the slope becomes a record, as `python -m benchmarks results` lists it.

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
