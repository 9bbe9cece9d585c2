"""Read a run folder.

Axes: S samples, K cases, N points, X coordinates, C channels, T frames, P observations, L layers, H heads.
"""

import csv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
EXPECTED_RUN = "give a run folder written by `linearno train`"
SLICE_MAPS = ("phi_dominant", "psi_dominant", "phi_slice", "psi_slice")
REEVALUATE = "evaluate the run again to rewrite it"
Fields = list[Float[ndarray, "_ _"]]  # (N, C) of each case


@dataclass(frozen=True)
class Slices:
    """Slice maps and ranks of each head in the median case; `bound` is M."""

    phi_dominant: Integer[ndarray, "L H N"]
    psi_dominant: Integer[ndarray, "L H N"]
    phi_slice: Float[ndarray, "L H N"]
    psi_slice: Float[ndarray, "L H N"]
    rank: Float[ndarray, "L H"]
    bound: int


@dataclass(frozen=True)
class Cases:
    """Best, median and worst sample in physical units: lists of (N, ·), where N may differ.

    Args:
        spec: names and units of the fields.
        sample: (K,) indices in the test split.
        error: (K,) errors.
        coords: coordinates of each case.
        inputs: input fields, if there are any.
        targets: true output fields.
        predictions: predicted output fields.
        slices: slice maps of the median case, if the model has slices.
        observed: (K, P) indices of the observed points of a field reconstruction.
        cells: corners of the cells of each case, if the benchmark has meshes.
    """

    spec: FieldSpec
    sample: Integer[ndarray, "K"]
    error: Float[ndarray, "K"]
    coords: Fields
    inputs: Fields | None
    targets: Fields
    predictions: Fields
    slices: Slices | None
    observed: Integer[ndarray, "K P"] | None
    cells: list[Integer[ndarray, "_ _"]] | None = None

    def positions(self, values: Fields, index: int) -> Float[ndarray, "N T X"] | None:
        """Positions of a case's points in each frame, if `values` (targets, predictions) contain them."""
        if not self.spec.position_outputs:
            return None
        channels = [self.spec.outputs.index(name) for name in self.spec.position_outputs]
        return values[index][:, channels].reshape(len(values[index]), -1, len(self.spec.coords))

    def points(self, index: int) -> Float[ndarray, "N X"]:
        """Coordinates at which the points of a case are drawn; positions in the last frame if they move."""
        positions = self.positions(self.targets, index)
        return self.coords[index] if positions is None else positions[:, -1]


@dataclass(frozen=True)
class Run:
    """Content of a run folder; missing parts are empty or None.

    Args:
        name: name of the run on the page.
        config_text: text of config.yaml.
        config: fields of config.yaml.
        card: fields of model.json.
        task: how samples become model calls.
        metrics: content of metrics.json.
        metric: name of the main metric.
        history: records of all epochs.
        errors: (S,) main metric of each test sample.
        frame_errors: (T,) mean relative L2 of each frame of a rollout.
        cases: best, median and worst sample.
        test_set: values (S,) of all test samples by name, if the benchmark has some.
        names: names of the test samples, if they have names.
        choice: content of choice.json, if the model was chosen among several.
    """

    name: str
    config_text: str
    config: dict[str, Any]
    card: dict[str, Any]
    task: Task
    metrics: dict[str, Any]
    metric: str
    history: list[EpochRecord]
    errors: Float[ndarray, "S"] | None
    frame_errors: Float[ndarray, "T"] | None
    cases: Cases | None
    test_set: dict[str, ndarray] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    choice: Mapping[str, Any] = field(default_factory=dict)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read the runs in these folders, named by the shortest distinct ends of their paths."""
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    if not distinct:
        raise UserError("a report needs at least one run folder")
    parts = 1
    while len({folder.parts[-parts:] for folder in distinct}) < len(distinct):
        parts += 1
    return [read_run(folder, "/".join(folder.parts[-parts:])) for folder in distinct]


def read_run(folder: Path, name: str) -> Run:
    """Read a run folder; `name` is the name of the run on the page."""
    require(folder, how=EXPECTED_RUN)
    if not (folder / "config.yaml").exists() and not (folder / "model.json").exists():
        raise UserError(f"{folder} contains neither config.yaml nor model.json; {EXPECTED_RUN}")
    card = _read_json_object(folder / "model.json")
    if card and card.get("format") != FORMAT:
        raise UserError(f"{folder} has format {card.get('format')}, this version reads format {FORMAT}")
    config_text, config = _read_config(folder / "config.yaml")
    task, metrics = _read_task(folder, card, config), _read_json_object(folder / "metrics.json")
    metric = metrics.get("metric") or task.metric or "relative_l2"
    return Run(
        name=name,
        config_text=config_text,
        config=config,
        card=card,
        task=task,
        metrics=metrics,
        metric=metric,
        history=read_history(folder / "history.jsonl"),
        errors=_read_errors(folder / "per_sample.csv", metric),
        frame_errors=_frame_errors(folder / "metrics.json", metrics),
        cases=_read_example_predictions(folder / "figures" / "cases.npz", card),
        test_set=_read_arrays(folder / "figures" / "test_set.npz"),
        names=_read_names(folder / "per_sample.csv"),
        choice=_read_json_object(folder / "choice.json"),
    )


def _read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if the file does not exist."""
    if not path.exists():
        return {}
    value = read_json(path, how=EXPECTED_RUN)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object; {EXPECTED_RUN}")
    return value


def _read_task(folder: Path, card: dict[str, Any], config: dict[str, Any]) -> Task:
    """Read the task from model.json or config.yaml; the default task if neither names one."""
    try:
        return make_task(card.get("task") or config.get("task"))
    except UserError as error:
        raise UserError(f"{folder}: task: {error}") from None


def _frame_errors(path: Path, metrics: dict[str, Any]) -> Float[ndarray, "T"] | None:
    try:
        errors = np.array(metrics.get("relative_l2_by_frame") or [], dtype=float)
    except (TypeError, ValueError):
        errors = np.empty((0, 0))
    if errors.ndim != 1:
        raise UserError(f"{path}: relative_l2_by_frame: expected a list of numbers; {REEVALUATE}")
    return errors if len(errors) else None


def _read_config(path: Path) -> tuple[str, dict[str, Any]]:
    """Text and fields of config.yaml; empty if it does not exist."""
    if not path.exists():
        return "", {}
    text = read_yaml_text(path, how=EXPECTED_RUN)
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a configuration; expected fields and values")
    return text, values


def _read_errors(path: Path, metric: str) -> Float[ndarray, "S"] | None:
    """Read the column of a metric in per_sample.csv."""
    if not path.exists():
        return None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return np.array([float(row[metric]) for row in csv.DictReader(file)], dtype=float)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: expected the columns sample,{metric} with numbers; {REEVALUATE}") from None


def _read_arrays(path: Path) -> dict[str, ndarray]:
    """Read all arrays of a file; none if it does not exist."""
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as disk:
            return {name: disk[name] for name in disk.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged ({error}); {REEVALUATE}") from None


def _read_names(path: Path) -> tuple[str, ...]:
    """Read the names of the samples in per_sample.csv, if it has them."""
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(row["name"] for row in csv.DictReader(file) if row.get("name"))


def _read_example_predictions(path: Path, card: dict[str, Any]) -> Cases | None:
    """Read and check figures/cases.npz."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as disk:
            arrays = {name: disk[name] for name in disk.files}
        spec = FieldSpec.make(card["spec"]) if "spec" in card else _generic_spec(arrays)
        if "grid" in arrays:
            spec = spec.model_copy(update={"grid": tuple(arrays["grid"].tolist())})
        _check_shapes(arrays, spec)
    except KeyError as missing:
        raise UserError(f"{path} lacks the array {missing}; {REEVALUATE}") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged or does not contain cases ({error}); {REEVALUATE}") from None
    slices = None
    if "rank" in arrays:
        maps = {name: arrays[name] for name in SLICE_MAPS}
        slices = Slices(**maps, rank=arrays["rank"].astype(float), bound=int(arrays["slices"]))
    return Cases(
        spec=spec,
        sample=arrays["sample"],
        error=arrays["error"],
        inputs=_split_cases(arrays, "inputs") if "inputs" in arrays else None,
        slices=slices,
        observed=arrays.get("observed"),
        cells=_split_cells(arrays) if "cells" in arrays else None,
        **{name: _split_cases(arrays, name) for name in ("coords", "targets", "predictions")},
    )


def _case_sizes(arrays: dict[str, ndarray]) -> list[int]:
    """Number of points of each case."""
    if "offsets" not in arrays:
        return [arrays["coords"].shape[1]] * len(arrays["coords"])
    offsets, total = arrays["offsets"].tolist(), len(arrays["coords"])
    if offsets[:1] != [0] or offsets[-1:] != [total] or not (sizes := np.diff(offsets).tolist()):
        raise ValueError(f"offsets {offsets} do not run from 0 to the {total} points")
    if min(sizes) < 1:
        raise ValueError(f"offsets {offsets} leave a case without points")
    return sizes


def _split_cases(arrays: dict[str, ndarray], name: str) -> Fields:
    """Split an array into cases, which are stacked if meshes have one size, else concatenated."""
    return list(np.split(arrays[name], arrays["offsets"][1:-1]) if "offsets" in arrays else arrays[name])


def _split_cells(arrays: dict[str, ndarray]) -> list[ndarray]:
    """Split the cells into those of each case; raise if a corner is no point of it."""
    offsets, sizes = arrays["cell_offsets"].tolist(), _case_sizes(arrays)
    parts = np.split(arrays["cells"], offsets[1:-1])
    if len(parts) != len(sizes) or any(
        part.size and not 0 <= part.min() <= part.max() < size
        for part, size in zip(parts, sizes, strict=True)
    ):
        raise ValueError("cells have corners that are no points of their case")
    return parts


def _generic_spec(arrays: dict[str, ndarray]) -> FieldSpec:
    """Generic field names, for an unfinished run without a spec."""

    def names(kind: str, part: str) -> tuple[str, ...]:
        return tuple(f"{kind} {i + 1}" for i in range(arrays[part].shape[-1] if part in arrays else 0))

    return FieldSpec(
        coords=names("coordinate", "coords"),
        inputs=names("input", "inputs"),
        outputs=names("output", "targets"),
    )


def _check_shapes(arrays: dict[str, ndarray], spec: FieldSpec) -> None:
    """Raise if an array has an unexpected shape."""
    axes = 2 if "offsets" in arrays else 3
    if arrays["coords"].ndim != axes:
        raise ValueError(f"coords has {arrays['coords'].ndim} axes, expected {axes}")
    leading, sizes = arrays["coords"].shape[:-1], _case_sizes(arrays)
    count, points = len(sizes), sizes[min(1, len(sizes) - 1)]  # of the median case
    expected: dict[str, tuple[int, ...]] = {
        "sample": (count,),
        "error": (count,),
        "coords": (*leading, len(spec.coords)),
        "targets": (*leading, len(spec.outputs)),
        "predictions": (*leading, len(spec.outputs)),
    }
    if "inputs" in arrays:
        expected["inputs"] = (*leading, len(spec.inputs))
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
