"""`linearno evaluate`: evaluate a finished run again, on its own test split or on other data."""

from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import DeviceOption, ImportOption, RunArgument, console, user_errors
from linearno.core.atomic_io import folder_lock
from linearno.core.config import override
from linearno.core.errors import UserError, require
from linearno.data import metric_title
from linearno.experiment import evaluate as evaluate_run
from linearno.inference.bundle import load
from linearno.inference.bundle_files import HOW
from linearno.initialization import open_splits
from linearno.models import import_definitions
from linearno.run_folder import open_run
from linearno.training.progress import unfinished

BUSY = "another process is training or evaluating in {root}; wait until it ends"


def evaluate(
    run: RunArgument,
    root: Annotated[Path | None, typer.Option(help="data folder; the one of the run by default")] = None,
    device: DeviceOption = "auto",
    imports: ImportOption = None,
) -> None:
    """Evaluate a run on its test split in physical units; rewrite its metrics.json and per_sample.csv.

    Examples:

      linearno evaluate runs/darcy-linearno
      linearno evaluate runs/darcy-linearno --root /scratch/darcy
    """
    with user_errors():
        import_definitions(imports or [])
        with folder_lock(require(run, how=HOW), busy=BUSY):
            if (message := unfinished(run, extended=True)) is not None:
                raise UserError(message)
            bundle, config = load(run, device), open_run(run)
            data = config.data if root is None else override(config.data, [f"root={root}"])
            metrics = evaluate_run(bundle, config, open_splits(data), run)
        console.print(f"{metrics['samples']} test samples; {metrics['data']}")
        for metric in dict.fromkeys([metrics["metric"], *config.benchmark.metrics]):
            for name in ("mean", "median", "std", "max"):
                console.print(f"{metric_title(metric)} {name:>6}  {metrics[metric][name]:.6g}")
        for name, value in metrics["summaries"].items():
            console.print(f"{metric_title(name)}  {value:.6g}")
        for step, value in enumerate(metrics.get("relative_l2_by_frame", []), start=1):
            console.print(f"relative L2 of step {step:>2}  {value:.6g}")
