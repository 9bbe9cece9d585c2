"""Predict on mesh files and write the fields onto the mesh, in physical units.

Axes: K points or cells of a mesh, Q query points, X coordinates, C channels.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from linearno.core.atomic_io import write_atomically
from linearno.core.errors import UserError
from linearno.inference.bundle import Bundle, load
from linearno.meshes.case_reader import Case, CaseReader
from linearno.meshes.config import MeshFields
from linearno.meshes.discover import one_case
from linearno.meshes.reader import array_files, commands, vtk_files
from linearno.meshes.reader.geometry import AXES
from linearno.meshes.reader.io import GRID_SUFFIXES, SUFFIXES, is_array_file
from linearno.meshes.reader.mesh import Arrays, CaseFile
from linearno.meshes.reader_process import Reader
from linearno.meshes.tables import read_table_of
from linearno.nn.protocol import Probabilistic, fixed_points

PREDICTED, ERROR, STD, INTERVAL = "_predicted", "_error", "_std", "_interval"
NOVELTY = "novelty"  # number of the case in a file of predictions

log = logging.getLogger(__name__)
QUERY_MEMORY = "2GB"  # to encode a mesh, unless another limit is given


class MeshPrediction(NamedTuple):
    """Predicted fields of a case.

    Args:
        case: what was read from its file.
        values: predicted channels (K, C).
        seconds: that the prediction took.
        errors: relative L2 error of each field that the file holds.
        novelty: up to 1 the case is as near to a training case as these are to each other; None if unknown.
        half_widths: half the width of the prediction intervals (K, C), if there are any.
        std: standard deviations (K, C), if the model has them.
    """

    case: Case
    values: Float[ndarray, "K C"]
    seconds: float
    errors: dict[str, float]
    novelty: float | None = None
    half_widths: Float[ndarray, "K C"] | None = None
    std: Float[ndarray, "K C"] | None = None


@dataclass(frozen=True)
class MeshModel:
    """A surrogate that takes mesh files.

    Args:
        bundle: the surrogate.
        fields: how its inputs are read from a mesh.
        memory: limit within which points are taken in chunks; None: all points at once.
        parameters: table of the numbers of cases; by default one in the folder of each mesh is looked for.
    """

    bundle: Bundle
    fields: MeshFields
    memory: str | None = None
    parameters: Path | None = None

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        *,
        tolerate: Sequence[str] = (),
        memory: str | None = None,
        parameters: Path | None = None,
    ) -> "MeshModel":
        """Fields of a bundle that was trained on arrays are found by the names of its channels."""
        if bundle.task.name != "direct":
            raise UserError(
                f"a model with task {bundle.task.name!r} does not take meshes: give `linearno predict` "
                "arrays, in a .npz or .mat file, or call load(run) in Python"
            )
        fields = bundle.mesh_fields or MeshFields.of(bundle.spec)
        faults = tuple(dict.fromkeys([*fields.tolerate, *tolerate]))
        return cls(bundle, MeshFields.make(fields.model_dump() | {"tolerate": faults}), memory, parameters)

    def read(self, reader: Reader, file: CaseFile, given: Mapping[str, float] | None = None) -> Case:
        """The case of a file; `given` numbers go before those of its folder's table and the file itself."""
        return self._case_reader(file, given).read(reader, file, truth=False)

    def predict(
        self, reader: Reader, file: CaseFile, given: Mapping[str, float] | None = None
    ) -> MeshPrediction:
        """Predict at the points of a mesh, or in its cells."""
        case = self.read(reader, file, given)
        sample, began = case.sample(), time.perf_counter()
        inputs = None if sample.inputs is None else sample.inputs[None]
        mean, std = self._mean_and_std(inputs, sample.coords[None])
        seconds = time.perf_counter() - began
        return self.as_prediction(case, mean[0], seconds, std=None if std is None else std[0])

    def as_prediction(
        self,
        case: Case,
        mean: Float[Tensor, "K C"],
        seconds: float,
        *,
        std: Float[Tensor, "K C"] | None = None,
    ) -> MeshPrediction:
        """The prediction with its novelty, intervals, and the errors of fields that the file holds.

        Targets of the surface are NaN elsewhere.
        """
        widths = None
        if (intervals := self.bundle.intervals) is not None and (std is not None or intervals.deviations):
            batch_std = None if std is None else std[None]
            widths = intervals.half_widths(batch_std, mean[None])[0].numpy()
        values = mean.numpy().copy()
        if case.surface is not None:
            for name in self.fields.surface_targets:
                for channel in self._channels(name):
                    values[~case.surface, channel] = np.nan
        errors = {name: self._relative_error(case, values, name) for name in case.found}
        spread = None if std is None else std.numpy()
        return MeshPrediction(case, values, seconds, errors, self.novelty(case), widths, spread)

    def _mean_and_std(self, inputs: Tensor | None, coords: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.bundle.members or (isinstance(self.bundle.model, Probabilistic) and self.memory is None):
            return self.bundle.predict_with_std(inputs, coords, memory=self.memory)
        return self.bundle.predict(inputs, coords, memory=self.memory), None

    def findings(self, case: Case) -> list[str]:
        """Messages about a case outside of what the model was trained on."""
        ranges = self.bundle.ranges
        if ranges is None:
            return []
        return ranges.findings(case.coords, case.inputs, self.bundle.spec.inputs, case.patches)

    def novelty(self, case: Case) -> float | None:
        ranges = self.bundle.ranges
        return None if ranges is None else ranges.novelty(case.coords, case.inputs, self.bundle.spec.inputs)

    def report(self, case: Case, *, strict: bool) -> None:
        """Log what is outside of the training cases; an error if `strict`."""
        for line in (lines := self.findings(case)):
            if not strict:
                log.warning("%s: outside of the training cases: %s", case.file.name, line)
        if lines and strict:
            raise UserError(f"{case.file.path}: outside of the training cases: {'; '.join(lines)}")

    def arrays(self, prediction: MeshPrediction) -> Arrays:
        """What is written onto the mesh: predictions, and errors of fields that the file holds."""
        arrays: Arrays = {}
        for name in self.bundle.spec.fields:
            values = prediction.values[:, self._channels(name)]
            arrays[name + PREDICTED] = self._as_field(name, values)
            if name in prediction.case.found:
                truth = prediction.case.targets[:, self._channels(name)]
                arrays[name + ERROR] = self._as_field(name, values - truth)
            for ending, part in ((STD, prediction.std), (INTERVAL, prediction.half_widths)):
                if part is not None:
                    arrays[name + ending] = self._as_field(name, part[:, self._channels(name)])
        if prediction.novelty is not None and not is_array_file(prediction.case.file):
            arrays[vtk_files.CASE_PREFIX + NOVELTY] = np.array([prediction.novelty])
        return arrays

    def quantities(self, prediction: MeshPrediction) -> dict[str, float]:
        """Integral quantities of the predicted fields; NaN if a patch is missing."""
        found = {}
        for name, quantity in self.fields.quantities.items():
            if name not in prediction.case.weights:
                found[name] = nan
                continue
            values = prediction.values[:, self.bundle.spec.outputs.index(quantity.channel)]
            found[name] = float(quantity.factor * (prediction.case.weights[name] @ values))
        return found

    def write(self, reader: Reader, prediction: MeshPrediction, out: Path) -> None:
        """Write the contents of the case's file and the predicted fields to `out`, whole or not at all."""
        units = {
            name + ending: self.bundle.spec.units[channels[0]]
            for name, channels in self.bundle.spec.fields.items()
            for ending in (PREDICTED, ERROR, STD, INTERVAL)
            if channels[0] in self.bundle.spec.units
        }
        file, arrays, location = prediction.case.file, self.arrays(prediction), self.fields.location

        def write(temporary: Path) -> None:
            plane = len(self.fields.coords) == 2
            suffix = out.suffix.lower()
            reader.call(commands.annotate, file, temporary, suffix, location, arrays, units, plane)

        write_atomically(out, write)

    def query(
        self,
        reader: Reader,
        file: CaseFile,
        points: Float[ndarray, "Q P"],
        given: Mapping[str, float] | None = None,
        *,
        strict: bool = False,
    ) -> Float[ndarray, "Q C"]:
        """Outputs of a case at any points: P = 3 for x, y, z, or the coordinates of the model.

        Fields that are inputs are interpolated in the cells of the mesh; so are the outputs of a model that
        is tied to the points of its training cases.
        """
        axes = [AXES.index(axis) for axis in self.fields.coords]
        if points.shape[1] not in (3, len(axes)):
            coords = ", ".join(self.fields.coords)
            raise UserError(f"points have {points.shape[1]} coordinates, expected {coords}")
        in_space = np.zeros((len(points), 3))
        in_space[:, axes if points.shape[1] < 3 else [0, 1, 2]] = points
        source = self._case_reader(file, given)
        case = source.read(reader, file, truth=False)
        self.report(case, strict=strict)
        self._require_inside(points=in_space[:, axes], strict=strict)
        sample, inputs, there = case.sample(), None, None
        if fixed_points(self.bundle.model) is not None:
            values = self.bundle.predict(
                sample.inputs if sample.inputs is None else sample.inputs[None], sample.coords[None]
            )
            return reader.call(
                commands.interpolate, file, in_space, values[0].numpy(), self.fields.location, len(axes) == 2
            )
        if sample.inputs is not None:
            inputs = sample.inputs[None]
            if self.bundle.streams_queries:
                there = source.inputs_at(reader, file, in_space, case)[None]
        encoded = self.bundle.encode(sample.coords[None], inputs, memory=self.memory or QUERY_MEMORY)
        return encoded.query(in_space[None, :, axes].astype(np.float32), there)[0]

    def _require_inside(self, points: Float[ndarray, "Q X"], *, strict: bool) -> None:
        """Log query points outside the box of the training points; an error if `strict`."""
        ranges = self.bundle.ranges
        if ranges is None or not (count := int(ranges.outside(points).sum())):
            return
        message = f"{count} of {len(points)} query points lie outside {ranges.box}"
        if strict:
            raise UserError(message)
        log.warning("%s: extrapolated", message)

    def _case_reader(self, file: CaseFile, given: Mapping[str, float] | None) -> CaseReader:
        if extra := set(given or {}) - set(self.fields.globals):
            known = ", ".join(self.fields.globals) or "none"
            raise UserError(
                f"{extra.pop()!r} is no number of a case that the model takes; those are: {known}"
            )
        return CaseReader(self.fields, read_table_of(file, self.parameters), given or {})

    def _channels(self, name: str) -> list[int]:
        return [self.bundle.spec.outputs.index(channel) for channel in self.bundle.spec.fields[name]]

    def _as_field(self, name: str, values: ndarray) -> ndarray:
        """(K,) of a scalar, (K, C) of a tensor; a vector in a plane gets a third component for viewers."""
        if values.shape[1] == 1 and name not in self.bundle.spec.vectors:
            return values[:, 0]
        parts = self.fields.components.get(name, ())
        if not parts or not set(parts) <= set(AXES):
            return values
        vector = np.zeros((len(values), 3), dtype=values.dtype)
        vector[:, [AXES.index(part) for part in parts]] = values
        return vector

    def _relative_error(self, case: Case, values: ndarray, name: str) -> float:
        truth, predicted = (part[:, self._channels(name)].astype(float) for part in (case.targets, values))
        size = float(np.sqrt(np.nansum(truth**2)))
        return float(np.sqrt(np.nansum((predicted - truth) ** 2))) / size if size else float("nan")


def output_suffix(path: Path) -> str:
    """Suffix of the predictions for a mesh: that of its file, if that can hold fields."""
    if path.is_dir() or path.suffix.lower() in GRID_SUFFIXES:
        return ".vtu"
    return ".vtp" if path.suffix.lower() == ".stl" else path.suffix.lower()


def require_writable(path: Path, out: Path) -> None:
    """An error if predictions for the mesh `path` cannot be written as `out`."""
    own, wanted = path.suffix.lower(), out.suffix.lower()
    if path.is_dir():
        own = "folder"
    elif own not in SUFFIXES:
        raise UserError(f"{path}: expected one of {', '.join(SUFFIXES)}, got {own or 'no suffix'!r}")
    possible = (".vtp", ".vtu", ".vtk") if own == ".stl" else tuple(vtk_files.WRITERS)
    if own in array_files.SUFFIXES:
        possible = (own,)
    if own == "folder" or own in GRID_SUFFIXES:
        possible = (".vtu", ".vtk")
    if wanted not in possible:
        raise UserError(f"{out}: predictions for a {own} file are written as one of {', '.join(possible)}")
    if out.exists() and out.samefile(path):
        raise UserError(f"{out} is the mesh itself; choose another name for the predictions")


def predict_mesh(
    run: str | Path,
    mesh: str | Path,
    out: str | Path,
    *,
    device: str = "cpu",
    given: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Predict on a mesh file and write it with the predicted fields.

    Args:
        run: run folder.
        mesh: file with the inputs of the model.
        out: file to write.
        device: "auto", "cpu", "cuda", …
        given: numbers of the case that the file does not hold.

    Returns:
        Relative L2 error of each field that the file holds.
    """
    file = one_case(Path(mesh))
    require_writable(file.path, Path(out))
    model = MeshModel.of(load(run, device))
    with Reader() as reader:
        prediction = model.predict(reader, file, given)
        model.write(reader, prediction, Path(out))
    return prediction.errors


def query_mesh(
    run: str | Path,
    mesh: str | Path,
    points: Float[ndarray, "Q P"],
    *,
    device: str = "cpu",
    given: Mapping[str, float] | None = None,
) -> Float[ndarray, "Q C"]:
    """Outputs for a mesh file at any points (Q, 2 or 3), in physical units; arguments as `predict_mesh`."""
    model = MeshModel.of(load(run, device))
    with Reader() as reader:
        return model.query(reader, one_case(Path(mesh)), points, given)
