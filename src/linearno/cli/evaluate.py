"""`linearno evaluate`: evaluate a finished run again, on its own test split or on other data."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import DeviceOption, ImportOption, RunArgument, console, progress_bar, user_errors
from linearno.core.atomic_io import folder_lock
from linearno.core.config import override
from linearno.core.device import available_cores
from linearno.core.errors import UserError, require
from linearno.data import DATASETS, DataConfig, metric_title
from linearno.experiment import evaluate as evaluate_run
from linearno.inference.bundle import load
from linearno.inference.bundle_files import HOW
from linearno.inference.manifest import manifest_entry
from linearno.initialization import open_splits
from linearno.models import import_definitions
from linearno.run_folder import open_run
from linearno.training.progress import unfinished

FRESH_SEED = 2**20
BUSY = "another process is training or evaluating in {root}; wait until it ends"


def evaluate(
    run: RunArgument,
    root: Annotated[Path | None, typer.Option(help="data folder; the one of the run by default")] = None,
    fresh: Annotated[
        int | None,
        typer.Option(min=1, help="generate this many new samples with the solver and evaluate on them"),
    ] = None,
    device: DeviceOption = "auto",
    imports: ImportOption = None,
) -> None:
    """Evaluate a run on its test split in physical units; rewrite its metrics.json and per_sample.csv.

    With --fresh, or for a published bundle, results are only printed.

    Examples:

      linearno evaluate runs/darcy-linearno
      linearno evaluate runs/darcy-linearno --root /scratch/darcy
      linearno evaluate weights/darcy --fresh 10
    """
    with user_errors():
        import_definitions(imports or [])
        with folder_lock(require(run, how=HOW), busy=BUSY):
            if (message := unfinished(run, extended=True)) is not None:
                raise UserError(message)
            bundle, config = load(run, device), open_run(run)
            data = config.data if root is None else override(config.data, [f"root={root}"])
            with tempfile.TemporaryDirectory() as scratch:
                if fresh is not None:
                    data = _generate(data, fresh, Path(scratch) / "data", device)
                printed_only = fresh is not None or manifest_entry(run) is not None
                folder = Path(scratch) if printed_only else run
                config = config.model_copy(update={"data": data})
                metrics = evaluate_run(bundle, config, open_splits(data), folder)
        console.print(f"{metrics['samples']} test samples; {metrics['data']}")
        for metric in dict.fromkeys([metrics["metric"], *config.benchmark.metrics]):
            for name in ("mean", "median", "std", "max"):
                console.print(f"{metric_title(metric)} {name:>6}  {metrics[metric][name]:.6g}")
        for name, value in metrics["summaries"].items():
            console.print(f"{metric_title(name)}  {value:.6g}")
        for step, value in enumerate(metrics.get("relative_l2_by_frame", []), start=1):
            console.print(f"relative L2 of step {step:>2}  {value:.6g}")


def _generate(data: DataConfig, samples: int, root: Path, device: str) -> DataConfig:
    """New test samples of the benchmark, from a seed that no training uses."""
    benchmark = DATASETS[data.name]
    if benchmark.generate is None or benchmark.resolution is None:
        raise UserError(f"{data.name} has no solver here: leave --fresh out")
    few = dict.fromkeys(set(data.sizes) - {"test"}, 1)
    data = data.model_copy(update={"root": root, "test": samples, "source": "generated", **few})
    with progress_bar(f"{data.name}: new samples", sum(data.sizes.values())) as advance:
        benchmark.generate(
            root,
            sizes=data.sizes,
            resolution=benchmark.resolution,
            seed=FRESH_SEED,
            workers=available_cores(),
            tick=advance,
            device=device,
        )
    return data
