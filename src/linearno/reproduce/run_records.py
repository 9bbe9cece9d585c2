"""Finished runs as records: the error reached, beside the published one."""

import hashlib
from collections.abc import Iterator, Sequence
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

PUBLISHED = {
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
}  # Hu et al. (2026)
KEPT = (
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
ELSEWHERE = {  # told at another place of a record, or without effect on its result
    "seed",
    "data.root",
    "training.epochs",
    "training.checkpoint_epochs",
    "training.checkpoint_seconds",
}
HOW = "give the folder of a finished run, as `linearno train` writes it"


def record_of_run(folder: Path, id: str | None = None) -> Record:
    """The mean relative L2 that a run reached on test, and where it comes from."""
    config = open_run(folder)
    metrics, card = (_facts(folder / name) for name in ("metrics.json", "model.json"))
    metric = next(iter(config.metrics))
    try:
        settings = config.model_dump(mode="json")
        settings["data"].pop("root")  # where the data lay is nobody's business
        return Record.make(
            {
                "id": id or run_id(config),
                "value": metrics[metric]["mean"],
                "unit": metric_title(metric),
                "against": _against(config, metrics),
                "recipe": config.recipe,
                "epochs": config.training.epochs,
                "seed": config.seed,
                "data": data_identity(config.data, metrics["data"]),
                "device_minutes": sum(metrics["seconds"].values()) / 60,
                "details": {key: metrics[key] for key in KEPT if key in metrics}
                | {"settings": settings, "changed": changed_settings(config)}
                | _gallery_details(config, folder, metrics),
            }
            | {key: card[key] for key in ("machine", "versions", "commit")}
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder}: metrics.json or model.json lacks {error}; {HOW}") from None


def record_runs(folders: Sequence[Path]) -> list[Record]:
    """Records of several runs: one for those that differ by their seed alone; those on the same data stand
    beside each other in `against`."""
    runs: dict[str, list[Record]] = {}
    names = {}
    for folder in folders:
        record = record_of_run(folder)
        runs.setdefault(record.id, []).append(record)
        names[record.id] = open_run(folder).model.name
    found = [over_seeds(records) for records in runs.values()]
    models = list(names.values())

    def with_peers(record: Record) -> Record:
        peers = {
            model: other.value
            for model, other in zip(models, found, strict=True)
            if other.id != record.id and other.data == record.data
        }
        return record.model_copy(update={"against": peers | record.against})

    return [with_peers(record) for record in found]


def over_seeds(records: Sequence[Record]) -> Record:
    """The mean of runs that differ by their seed alone; each stands in the details."""
    first = records[0]
    if len(records) == 1:
        return first
    for record in records[1:]:
        if (_but_seed(record), record.data) != (_but_seed(first), first.data):
            raise UserError(f"runs of {first.id} differ by more than their seed: record them one by one")
    if len({record.seed for record in records}) < len(records):
        raise UserError(f"two runs of {first.id} have the same seed: record one of them")
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


def _but_seed(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.details["settings"].items() if key != "seed"}


def record_of_precisions(folders: Sequence[Path]) -> Record:
    """The error of the first run's precision relative to the second's: the mean ratio over the seeds."""
    configs, found = [open_run(folder) for folder in folders], [record_of_run(folder) for folder in folders]
    runs: list[dict[str, Any]] = [
        {"precision": config.training.precision, "seed": config.seed, "error": record.value}
        for config, record in zip(configs, found, strict=True)
    ]
    first, second = list(dict.fromkeys(run["precision"] for run in runs))[:2]
    of = {(run["precision"], run["seed"]): run["error"] for run in runs}
    ratios = [of[first, seed] / of[second, seed] for seed in dict.fromkeys(config.seed for config in configs)]
    return found[0].model_copy(
        update={
            "id": f"study/precision/{configs[0].data.name}",
            "value": sum(ratios) / len(ratios),
            "unit": f"error of {first} / error of {second}",
            "against": {},
            "seed": None,
            "device_minutes": sum(record.device_minutes or 0 for record in found),
            "details": {"error": found[0].unit, "runs": runs},
        }
    )


def _gallery_details(config: RunConfig, folder: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    """Title and seconds of a run of `linearno gallery`, which notes the solver's time next to the run."""
    prefix, _, name = config.recipe.partition("/")
    if prefix != "gallery" or name not in GALLERY:
        return {}
    solving = folder.parent / "solving.json"
    solve = read_json(solving, how=HOW)["seconds"] if solving.exists() else None
    return {"title": GALLERY[name].title, "seconds": {"solve": solve, **metrics["seconds"]}}


def run_id(config: RunConfig) -> str:
    """`train/RECIPE`; the demo's and the gallery's keep to names of their own: they are no benchmarks."""
    if config.recipe.startswith("demo/"):
        return f"demo/{config.data.name}/{config.model.name}"
    return f"{'demo' if config.recipe.startswith('gallery/') else 'train'}/{config.recipe}"


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """The settings, by their full names, that are not those of the recipe."""
    if config.recipe not in RECIPES:
        return {}
    usual, used = (dict(_flat(each.model_dump(mode="json"))) for each in (RECIPES[config.recipe](), config))
    return {name: value for name, value in used.items() if name not in ELSEWHERE and value != usual.get(name)}


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def data_identity(config: DataConfig, source: str) -> str:
    """`generated` or `published`, with a hash over the files: the card's hashes, or the files' own."""
    kind = source.split()[0]
    if kind == "generated" and (config.root / CARD).exists():
        hashes = [facts.sha256 for _, facts in sorted(read_card(config.root, how=HOW).files.items())]
    else:
        named = sorted(config.root.rglob("*"), key=lambda path: path.name)  # some lie in a folder below
        hashes = [sha256(path) for path in named if path.is_file() and path.name in source]
    if not hashes:
        return kind
    return f"{kind}, sha256 {hashlib.sha256(' '.join(hashes).encode()).hexdigest()[:12]}"


def _against(config: RunConfig, metrics: dict[str, Any]) -> dict[str, float]:
    published = {"published": PUBLISHED[config.recipe]} if config.recipe in PUBLISHED else {}
    return published | {"mean field": metrics["mean_field"][next(iter(config.metrics))]}


def _facts(path: Path) -> dict[str, Any]:
    values = read_json(path, how=HOW)
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no record of names and values; {HOW}")
    return values
