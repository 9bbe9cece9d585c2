"""Publish the bundle of a run: weights in half precision if the error allows it, hashes, error, data card."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.core.atomic_io import read_json, read_tensors, sha256, write_json, write_tensors
from linearno.core.errors import UserError
from linearno.data import Splits
from linearno.experiment import evaluate
from linearno.inference.bundle import load
from linearno.inference.manifest import MANIFEST
from linearno.initialization import open_splits
from linearno.reproduce.run_records import changed_settings, data_identity
from linearno.run_config import RECIPES, RunConfig
from linearno.run_folder import open_run

MAX_BYTES = 4 * 10**6
MAX_ERROR_CHANGE = 0.01  # of the error, by rounding
PRECISIONS = (torch.float16, torch.float32, torch.float64)
AGAIN = "train the run again"
FILES = ("config.yaml", "model.json", "model.safetensors")


def weights(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    name: Annotated[str, typer.Argument(help="name of the published bundle, such as darcy")],
    out: Annotated[Path, typer.Option(help="folder of published bundles")] = Path("weights"),
    note: Annotated[
        str, typer.Option(help="what a reader must know, such as a training that is no published recipe")
    ] = "",
    device: DeviceOption = "auto",
) -> None:
    """Copy the bundle of a finished run to OUT/NAME and state its hashes and error in OUT/manifest.json.

    Weights are rounded to half precision if that changes the test error by less than 1 %, else to single
    precision. The stated error is that of the stored weights. A bundle of more than 4 MB is refused, and a
    run under the name of its recipe whose settings are not those of the recipe, unless --note says so.

    Example:

      python -m benchmarks weights runs/darcy-linearno darcy
    """
    with user_errors():
        config = open_run(run)
        _require_honest_name(run, config, note)
        splits = open_splits(config.data)
        full = _test_error(run, config, splits, device)
        with tempfile.TemporaryDirectory() as scratch:
            staged = Path(scratch) / name
            for precision in PRECISIONS:
                _copy(run, staged, precision)
                error = _test_error(staged, config, splits, device)
                if abs(error["mean"] / full["mean"] - 1) < MAX_ERROR_CHANGE:
                    break
            size = sum((staged / file).stat().st_size for file in FILES)
            if size > MAX_BYTES:
                raise UserError(
                    f"{name} has {size / 1e6:.1f} MB, at most {MAX_BYTES / 1e6:g} MB are published"
                )
            _publish(staged, out / name)
        entry = _describe(run, config, splits) | {
            "note": note,
            "weights": str(precision).removeprefix("torch."),
            "error": error,
            "error_unrounded": full["mean"],
            "bytes": size,
            "sha256": {file: sha256(out / name / file) for file in FILES},
        }
        entries = read_json(out / MANIFEST, how="remove it") if (out / MANIFEST).exists() else {}
        write_json(out / MANIFEST, dict(sorted({**entries, name: entry}.items())))
        console.print(f"{out / name}: {size / 1e6:.2f} MB, {entry['weights']}, error {error['mean']:.4g}")


def _require_honest_name(run: Path, config: RunConfig, note: str) -> None:
    """An error if the run is not what the name of its recipe promises and no note says so."""
    changed = changed_settings(config)
    if (
        config.recipe in RECIPES
        and (usual := RECIPES[config.recipe]().training.epochs) != config.training.epochs
    ):
        changed["training.epochs"] = f"{config.training.epochs}, not {usual}"
    if (changed or config.recipe not in RECIPES) and not note:
        differs = ", ".join(f"{name}={value}" for name, value in changed.items()) or config.recipe
        raise UserError(f"{run} is not trained as its recipe says ({differs}); state that with --note")


def _describe(run: Path, config: RunConfig, splits: Splits) -> dict[str, Any]:
    """Recipe, settings, data and training of a run."""
    metrics, card = (read_json(run / name, how=AGAIN) for name in ("metrics.json", "model.json"))
    return {
        "recipe": config.recipe,
        "changed": changed_settings(config),
        "epochs": config.training.epochs,
        "seed": config.seed,
        "data": data_identity(config.data, splits.source),
        "card": _card(config),
        "trained_on": metrics["device"],
        "training_minutes": round(metrics["seconds"]["train"] / 60, 2),
        "commit": card.get("commit"),
    }


def _test_error(folder: Path, config: RunConfig, splits: Splits, device: str) -> dict[str, Any]:
    """Mean, median, deviation and maximum of the main metric on the test split."""
    with tempfile.TemporaryDirectory() as scratch:
        metrics = evaluate(load(folder, device), config, splits, Path(scratch))
    found = metrics[metrics["metric"]]
    statistics = {name: found[name] for name in ("mean", "median", "std", "max")}
    return {"metric": metrics["metric"], "samples": metrics["samples"], **statistics}


def _copy(run: Path, folder: Path, precision: torch.dtype) -> None:
    """Copy the files of a bundle; weights of more bits than `precision` are rounded to it."""
    folder.mkdir(exist_ok=True)
    for file in FILES:
        shutil.copyfile(run / file, folder / file)
    tensors = read_tensors(run / "model.safetensors", how=AGAIN)
    for name, tensor in tensors.items():
        if name.startswith("model.") and tensor.is_floating_point() and tensor.itemsize > precision.itemsize:
            tensors[name] = tensor.to(precision)
    write_tensors(folder / "model.safetensors", tensors)


def _publish(staged: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        shutil.copyfile(staged / file, folder / file)


def _card(config: RunConfig) -> dict[str, Any] | None:
    """The card of a generated set, without its hashes."""
    path = config.data.root / "card.json"
    card = read_json(path, how="generate the set again") if path.exists() else None
    return None if card is None else {name: value for name, value in card.items() if name != "files"}
