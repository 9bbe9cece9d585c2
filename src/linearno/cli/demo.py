"""`linearno demo`: solve, train and write a report in one command."""

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from linearno.cli.shared import DeviceOption, console, progress_bar, user_errors
from linearno.cli.train import exit_on_interrupt, run_with_bar
from linearno.core.config import override
from linearno.data import DATASETS
from linearno.recipes import RECIPES
from linearno.recipes.demo import DATA, RESOLUTION
from linearno.report import write_report
from linearno.run_config import RunConfig

MODELS = ("linearno", "transolver")


def demo(
    out: Annotated[Path, typer.Option(help="folder for data, runs and report")] = Path("demo"),
    device: DeviceOption = "auto",
) -> None:
    """Solve a PDE, train two neural operators on the solutions, and compare their errors.

    The problem is Darcy flow: predict the pressure in a porous medium from its permeability. The solver
    generates 1,100 random samples; LinearNO and Transolver are trained on 1,000 and tested on 100. This takes
    one or two minutes on a CPU.

    Example:

      linearno demo
    """
    with user_errors(), exit_on_interrupt():
        began = time.perf_counter()
        root = out / "data"
        generate_data(root)
        runs = {model: train_model(model, root, out / model, device) for model in MODELS}
        page = out / "report.html"
        write_report([out / model for model in MODELS], page)
        console.print(comparison_table(runs))
        console.print(f"report: {page}  ({time.perf_counter() - began:.0f} s in total)")


def generate_data(root: Path) -> None:
    """Solve Darcy flow for the random samples of the demo."""
    sizes = {"train": DATA.train, "test": DATA.test}
    console.print(f"solving Darcy flow for {sum(sizes.values())} random samples → {root}")
    generate = DATASETS["darcy"].generate
    assert generate is not None
    with progress_bar("solving", sum(sizes.values())) as advance:
        generate(root, sizes=sizes, resolution=RESOLUTION, seed=0, workers=os.cpu_count() or 1, tick=advance)


def train_model(model: str, root: Path, folder: Path, device: str) -> dict[str, Any]:
    """Train a model on the data in `root` and return its metrics."""
    config: RunConfig = override(RECIPES[f"demo/{model}"](), [f"data.root={root}"])
    return run_with_bar(config, folder, device)


def comparison_table(runs: dict[str, dict[str, Any]]) -> Table:
    """Parameters, test errors and training time of the runs."""
    table = Table("model", box=None, pad_edge=False)
    for column in ("parameters", "test relative L2", "median", "worst", "training s"):
        table.add_column(column, justify="right")
    for model, metrics in runs.items():
        error = metrics["relative_l2"]
        table.add_row(
            model,
            f"{metrics['parameters']:,}",
            f"{error['mean']:.4f}",
            f"{error['median']:.4f}",
            f"{error['max']:.4f}",
            f"{metrics['seconds']['train']:.0f}",
        )
    baseline = next(iter(runs.values()))["mean_field"]["relative_l2"]
    table.add_row("mean field", "0", f"{baseline:.4f}", "", "", "")
    return table
