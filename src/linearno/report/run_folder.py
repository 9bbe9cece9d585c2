"""A run folder read.

Axes: S samples, K cases, N points, X coordinates, C channels, T frames, P observations, L layers, H heads.
"""

import csv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from numpy import ndarray

from linearno.core.atomic_io import read_json
from linearno.core.errors import UserError, require
from linearno.core.strict_yaml import parse_yaml, read_yaml_text
from linearno.data import FieldSpec
from linearno.training import Task
from linearno.training.history import EpochRecord, read_history
from linearno.training.tasks import make_task

FORMAT = 1
HOW = "give a run folder, as `linearno train` writes it"
SLICE_MAPS = ("phi_dominant", "psi_dominant", "phi_slice", "psi_slice")
AGAIN = "evaluate the run again to write it anew"
Fields = list[Float[ndarray, "_ _"]]  # (N, C) of each case


@dataclass(frozen=True)
class Slices:
    """What each head of each layer attends to, in the median case; `bound` is M."""

    phi_dominant: Integer[ndarray, "L H N"]
    psi_dominant: Integer[ndarray, "L H N"]
    phi_slice: Float[ndarray, "L H N"]
    psi_slice: Float[ndarray, "L H N"]
    rank: Float[ndarray, "L H"]
    bound: int


@dataclass(frozen=True)
class Cases:
    """Best, median and worst sample, in physical units: of each (N, ·), and N may differ."""

    spec: FieldSpec
    sample: Integer[ndarray, "K"]
    error: Float[ndarray, "K"]
    coords: Fields
    inputs: Fields | None
    targets: Fields
    predictions: Fields
    slices: Slices | None
    observed: Integer[ndarray, "K P"] | None  # the points that a completion was told of

    def places(self, values: Fields, place: int) -> Float[ndarray, "N T X"] | None:
        """Where the points of a case are in each frame, if the outputs tell: by `values` of these."""
        if not self.spec.position_outputs:
            return None
        channels = [self.spec.outputs.index(name) for name in self.spec.position_outputs]
        return values[place][:, channels].reshape(len(values[place]), -1, len(self.spec.coords))

    def points(self, place: int) -> Float[ndarray, "N X"]:
        """Where to draw the points of a case: those that move, where they are in the end."""
        places = self.places(self.targets, place)
        return self.coords[place] if places is None else places[:, -1]


@dataclass(frozen=True)
class Run:
    """What a folder holds; a part that is not there is empty or None."""

    name: str
    settings: str  # config.yaml, as it stands
    config: dict[str, Any]
    card: dict[str, Any]  # model.json
    task: Task
    metrics: dict[str, Any]
    metric: str  # the name of the error that counts, in `metrics` and for `errors`
    history: list[EpochRecord]
    errors: Float[ndarray, "S"] | None
    by_frame: Float[ndarray, "T"] | None  # mean relative L2 of each frame of a rollout
    cases: Cases | None


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders, named by as much of their paths as tells them apart."""
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    if not distinct:
        raise UserError("a report needs at least one run folder")
    parts = 1
    while len({folder.parts[-parts:] for folder in distinct}) < len(distinct):
        parts += 1
    return [read_run(folder, "/".join(folder.parts[-parts:])) for folder in distinct]


def read_run(folder: Path, name: str) -> Run:
    require(folder, how=HOW)
    if not (folder / "config.yaml").exists() and not (folder / "model.json").exists():
        raise UserError(f"{folder} is not a run: it holds neither config.yaml nor model.json; {HOW}")
    card = _record(folder / "model.json")
    if card and card.get("format") != FORMAT:
        raise UserError(f"{folder} has format {card.get('format')}, this version reads {FORMAT}")
    settings, config = _config(folder / "config.yaml")
    task, metrics = _task(folder, card, config), _record(folder / "metrics.json")
    metric = metrics.get("metric") or task.metric or "relative_l2"
    return Run(
        name=name,
        settings=settings,
        config=config,
        card=card,
        task=task,
        metrics=metrics,
        metric=metric,
        history=read_history(folder / "history.jsonl"),
        errors=_errors(folder / "per_sample.csv", metric),
        by_frame=_by_frame(folder / "metrics.json", metrics),
        cases=_cases(folder / "figures" / "cases.npz", card),
    )


def _record(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = read_json(path, how=HOW)
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no record of names and values; {HOW}")
    return value


def _task(folder: Path, card: dict[str, Any], config: dict[str, Any]) -> Task:
    """What the model was asked; a run without a word about it answered directly."""
    try:
        return make_task(card.get("task") or config.get("task"))
    except UserError as error:
        raise UserError(f"{folder}: task: {error}") from None


def _by_frame(path: Path, metrics: dict[str, Any]) -> Float[ndarray, "T"] | None:
    try:
        errors = np.array(metrics.get("relative_l2_by_frame") or [], dtype=float)
    except (TypeError, ValueError):
        errors = np.empty((0, 0))
    if errors.ndim != 1:
        raise UserError(f"{path}: relative_l2_by_frame: expected a list of numbers; {AGAIN}")
    return errors if len(errors) else None


def _config(path: Path) -> tuple[str, dict[str, Any]]:
    if not path.exists():
        return "", {}
    text = read_yaml_text(path, how=HOW)
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no configuration; expected fields and values")
    return text, values


def _errors(path: Path, metric: str) -> Float[ndarray, "S"] | None:
    if not path.exists():
        return None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return np.array([float(row[metric]) for row in csv.DictReader(file)], dtype=float)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: expected the columns sample,{metric} with numbers; {AGAIN}") from None


def _cases(path: Path, card: dict[str, Any]) -> Cases | None:
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as disk:
            arrays = {name: disk[name] for name in disk.files}
        spec = FieldSpec.make(card["spec"]) if "spec" in card else _nameless(arrays)
        if "grid" in arrays:
            spec = spec.model_copy(update={"grid": tuple(arrays["grid"].tolist())})
        _check(arrays, spec)
    except KeyError as missing:
        raise UserError(f"{path} lacks the array {missing}; {AGAIN}") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged or not a file of cases ({error}); {AGAIN}") from None
    slices = None
    if "rank" in arrays:
        maps = {name: arrays[name] for name in SLICE_MAPS}
        slices = Slices(**maps, rank=arrays["rank"].astype(float), bound=int(arrays["slices"]))
    return Cases(
        spec=spec,
        sample=arrays["sample"],
        error=arrays["error"],
        inputs=_apart(arrays, "inputs") if "inputs" in arrays else None,
        slices=slices,
        observed=arrays.get("observed"),
        **{name: _apart(arrays, name) for name in ("coords", "targets", "predictions")},
    )


def _sizes(arrays: dict[str, ndarray]) -> list[int]:
    """The points of each case."""
    if "offsets" not in arrays:
        return [arrays["coords"].shape[1]] * len(arrays["coords"])
    offsets, total = arrays["offsets"].tolist(), len(arrays["coords"])
    if offsets[:1] != [0] or offsets[-1:] != [total] or not (sizes := np.diff(offsets).tolist()):
        raise ValueError(f"offsets {offsets} do not run from 0 to the {total} points")
    if min(sizes) < 1:
        raise ValueError(f"offsets {offsets} leave a case without points")
    return sizes


def _apart(arrays: dict[str, ndarray], name: str) -> Fields:
    """A field of each case: of meshes of one size they are stacked, of others one after another."""
    return list(np.split(arrays[name], arrays["offsets"][1:-1]) if "offsets" in arrays else arrays[name])


def _nameless(arrays: dict[str, ndarray]) -> FieldSpec:
    """Names for the channels of a run that did not get as far as writing its own."""

    def names(kind: str, part: str) -> tuple[str, ...]:
        return tuple(f"{kind} {i + 1}" for i in range(arrays[part].shape[-1] if part in arrays else 0))

    return FieldSpec(
        coords=names("coordinate", "coords"),
        inputs=names("input", "inputs"),
        outputs=names("output", "targets"),
    )


def _check(arrays: dict[str, ndarray], spec: FieldSpec) -> None:
    """Shapes that do not fit are named here rather than in the middle of a figure."""
    axes = 2 if "offsets" in arrays else 3
    if arrays["coords"].ndim != axes:
        raise ValueError(f"coords has {arrays['coords'].ndim} axes, expected {axes}")
    where, sizes = arrays["coords"].shape[:-1], _sizes(arrays)
    count, points = len(sizes), sizes[min(1, len(sizes) - 1)]  # of the median case
    expected: dict[str, tuple[int, ...]] = {
        "sample": (count,),
        "error": (count,),
        "coords": (*where, len(spec.coords)),
        "targets": (*where, len(spec.outputs)),
        "predictions": (*where, len(spec.outputs)),
    }
    if "inputs" in arrays:
        expected["inputs"] = (*where, len(spec.inputs))
    if "rank" in arrays:
        heads = arrays["rank"].shape
        expected |= {"slices": ()} | dict.fromkeys(SLICE_MAPS, (*heads, points))
    if "observed" in arrays:
        expected["observed"] = (count, arrays["observed"].shape[-1] if arrays["observed"].ndim else 0)
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has shape {arrays[name].shape}, expected {shape}")
    if spec.points is not None and spec.points != points:
        raise ValueError(f"{points} points do not fill the grid {spec.grid}")
    if "observed" in arrays and not np.isin(arrays["observed"], np.arange(points)).all():
        raise ValueError(f"observed points are not all among the {points}")
