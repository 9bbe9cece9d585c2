"""Records of finished runs: test error and published error."""

import hashlib
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from linearno.core.atomic_io import read_json, sha256
from linearno.core.errors import UserError
from linearno.data import DataConfig, metric_title
from linearno.data.generation.card import CARD, read_card
from linearno.recipes.gallery import GALLERY
from linearno.reproduce.records import Record
from linearno.run_config import RECIPES, RunConfig
from linearno.run_folder import open_run

PUBLISHED_ERRORS = {  # mean test errors, Hu et al. (2026)
    "darcy/linearno": 0.0050,
    "darcy/transolver": 0.0055,
    "ns/linearno": 0.0699,
    "ns/transolver": 0.0882,
    "elasticity/linearno": 0.0050,
    "elasticity/transolver": 0.0065,
    "pipe/linearno": 0.0024,
    "pipe/transolver": 0.0030,
    "airfoil/linearno": 0.0049,
    "airfoil/transolver": 0.0053,
    "plasticity/linearno": 0.0011,
    "plasticity/transolver": 0.0013,
    "burgers20/linearno": 0.0073,
    "burgers1/linearno": 0.0124,
}
METRIC_KEYS = (  # of metrics.json, copied to the record
    "samples",
    "relative_mae",
    "relative_l2",
    "relative_l2_by_frame",
    "mean_field",
    "parameters",
    "seconds",
    "device",
    "precision",
    "training_precision",
    "protocol",
)
UNCOMPARED_SETTINGS = {  # fields of the record, or without effect on its result
    "seed",
    "data.root",
    "training.epochs",
    "training.checkpoint_epochs",
    "training.checkpoint_seconds",
}
RUN_FOLDER_HINT = "give the folder of a finished run of `linearno train`"


def record_of_run(folder: Path, id: str | None = None) -> Record:
    """Record of a run: the mean test error, settings, data and machine."""
    config = open_run(folder)
    metrics, card = (_read_json_object(folder / name) for name in ("metrics.json", "model.json"))
    metric = next(iter(config.metrics))
    try:
        settings = config.model_dump(mode="json")
        settings["data"].pop("root")  # a local path
        return Record.make(
            {
                "id": id or run_id(config),
                "value": metrics[metric]["mean"],
                "unit": metric_title(metric),
                "against": _comparison_values(config, metrics),
                "recipe": config.recipe,
                "epochs": config.training.epochs,
                "seed": config.seed,
                "data": data_identity(config.data, metrics["data"]),
                "device_minutes": sum(metrics["seconds"].values()) / 60,
                "details": {key: metrics[key] for key in METRIC_KEYS if key in metrics}
                | {"settings": settings, "changed": changed_settings(config)}
                | _measures(config, metrics)
                | _gallery_details(config, folder, metrics),
            }
            | {key: card[key] for key in ("machine", "versions", "commit")}
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder}: metrics.json or model.json lacks {error}; {RUN_FOLDER_HINT}") from None


def record_runs(folders: Sequence[Path]) -> list[Record]:
    """Records of several runs: one per group that differs only by seed.

    `against` of each record has the errors of the other models on the same data.
    """
    runs: dict[str, list[Record]] = {}
    models = {}
    for folder in folders:
        record = record_of_run(folder)
        runs.setdefault(record.id, []).append(record)
        models[record.id] = open_run(folder).model.name
    means = [mean_over_seeds(records) for records in runs.values()]

    def with_peers(record: Record) -> Record:
        peers = {
            model: other.value
            for model, other in zip(models.values(), means, strict=True)
            if other.id != record.id and other.data == record.data
        }
        return record.model_copy(update={"against": peers | record.against})

    return [with_peers(record) for record in means]


def mean_over_seeds(records: Sequence[Record]) -> Record:
    """Mean of runs that differ only by seed; `details["seeds"]` lists them."""
    first = records[0]
    if len(records) == 1:
        return first
    for record in records[1:]:
        if (_settings_without_seed(record), record.data) != (_settings_without_seed(first), first.data):
            raise UserError(f"runs of {first.id} differ by more than the seed; record them one by one")
    if len({record.seed for record in records}) < len(records):
        raise UserError(f"two runs of {first.id} have the same seed; record one of them")
    minutes = [record.device_minutes or 0 for record in records]
    seeds = [
        {"seed": run.seed, "value": run.value, "device_minutes": run.device_minutes, "commit": run.commit}
        for run in records
    ]
    return first.model_copy(
        update={
            "value": sum(record.value for record in records) / len(records),
            "seed": None,
            "device_minutes": sum(minutes) / len(minutes),
            "details": first.details | {"seeds": seeds},
        }
    )


def _settings_without_seed(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.details["settings"].items() if key != "seed"}


def record_of_precisions(folders: Sequence[Path]) -> Record:
    """Record of the error ratio of two precisions, averaged over the seeds."""
    configs = [open_run(folder) for folder in folders]
    records = [record_of_run(folder) for folder in folders]
    runs: list[dict[str, Any]] = [
        {"precision": config.training.precision, "seed": config.seed, "error": record.value}
        for config, record in zip(configs, records, strict=True)
    ]
    first, second = list(dict.fromkeys(run["precision"] for run in runs))[:2]
    errors = {(run["precision"], run["seed"]): run["error"] for run in runs}
    ratios = [
        errors[first, seed] / errors[second, seed]
        for seed in dict.fromkeys(config.seed for config in configs)
    ]
    return records[0].model_copy(
        update={
            "id": f"study/precision/{configs[0].data.name}",
            "value": sum(ratios) / len(ratios),
            "unit": f"error of {first} / error of {second}",
            "against": {},
            "seed": None,
            "device_minutes": sum(record.device_minutes or 0 for record in records),
            "details": {"error": records[0].unit, "runs": runs},
        }
    )


def _measures(config: RunConfig, metrics: dict[str, Any]) -> dict[str, Any]:
    """Means of all metrics of the benchmark, and its summaries, if it has several."""
    found = {name: metrics[name]["mean"] for name in config.benchmark.metrics if name in metrics}
    summaries = {name: value for name, value in metrics.get("summaries", {}).items() if isfinite(value)}
    return {"measures": found | summaries} if len(found) + len(summaries) > 1 else {}


def _gallery_details(config: RunConfig, folder: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    """Title and times of a run of `linearno gallery`, which writes the solver's time to solving.json."""
    prefix, _, name = config.recipe.partition("/")
    if prefix != "gallery" or name not in GALLERY:
        return {}
    path = folder.parent / "solving.json"
    solve = read_json(path, how=RUN_FOLDER_HINT)["seconds"] if path.exists() else None
    return {"title": GALLERY[name].title, "seconds": {"solve": solve, **metrics["seconds"]}}


def run_id(config: RunConfig) -> str:
    """`train/RECIPE`, or `demo/…` for runs of the demo and the gallery."""
    if config.recipe.startswith("demo/"):
        return f"demo/{config.data.name}/{config.model.name}"
    return f"{'demo' if config.recipe.startswith('gallery/') else 'train'}/{config.recipe}"


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """Settings that differ from the recipe, by dotted name."""
    if config.recipe not in RECIPES:
        return {}
    recipe, used = (
        dict(_flatten(each.model_dump(mode="json"))) for each in (RECIPES[config.recipe](), config)
    )
    changed = {name: value for name, value in used.items() if value != recipe.get(name)}
    return {name: value for name, value in changed.items() if name not in UNCOMPARED_SETTINGS}


def _flatten(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def data_identity(config: DataConfig, source: str) -> str:
    """`generated` or `published`, with a hash of the file hashes (from the card if there is one)."""
    kind = source.split()[0]
    if kind == "generated" and (config.root / CARD).exists():
        hashes = [
            entry.sha256 for _, entry in sorted(read_card(config.root, how=RUN_FOLDER_HINT).files.items())
        ]
    else:
        paths = sorted(config.root.rglob("*"), key=lambda path: path.name)  # including subfolders
        hashes = [sha256(path) for path in paths if path.is_file() and path.name in source]
    if not hashes:
        return kind
    return f"{kind}, sha256 {hashlib.sha256(' '.join(hashes).encode()).hexdigest()[:12]}"


def _comparison_values(config: RunConfig, metrics: dict[str, Any]) -> dict[str, float]:
    published = {"published": PUBLISHED_ERRORS[config.recipe]} if config.recipe in PUBLISHED_ERRORS else {}
    return published | {"mean field": metrics["mean_field"][next(iter(config.metrics))]}


def _read_json_object(path: Path) -> dict[str, Any]:
    values = read_json(path, how=RUN_FOLDER_HINT)
    if not isinstance(values, dict):
        raise UserError(f"expected a JSON object in {path}; {RUN_FOLDER_HINT}")
    return values
