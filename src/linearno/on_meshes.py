"""Mesh files through a trained model: what it predicts is written onto the mesh, in physical units.

Axes: K points or cells of a mesh, Q places, C channels.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from linearno.core.atomic_io import write_atomically, write_text
from linearno.core.errors import UserError
from linearno.inference.bundle import Bundle, load
from linearno.meshes.case_reader import Case, CaseReader
from linearno.meshes.config import CasesConfig, MeshFields
from linearno.meshes.discover import case_file, read_table
from linearno.meshes.reader import array_files, commands
from linearno.meshes.reader.geometry import AXES
from linearno.meshes.reader.io import SUFFIXES
from linearno.meshes.reader.mesh import Arrays, CaseFile
from linearno.meshes.reader.vtk_files import WRITERS
from linearno.meshes.reader_process import Reader
from linearno.run_folder import open_run

PREDICTED, ERROR = "_predicted", "_error"
MEMORY = "2GB"  # for a mesh that is asked elsewhere, unless another is given


class Answer(NamedTuple):
    """A case with what the model says of it."""

    case: Case
    prediction: Float[ndarray, "K C"]
    seconds: float
    errors: dict[str, float]  # relative L2 of each field whose truth is in the file

    @property
    def points(self) -> int:
        return len(self.prediction)


@dataclass(frozen=True)
class MeshModel:
    """A trained model, and how it wants a mesh to be read."""

    bundle: Bundle
    config: MeshFields
    memory: str | None = None  # take points in chunks that need no more

    @classmethod
    def open(
        cls, run: Path, device: str = "cpu", *, tolerate: tuple[str, ...] = (), memory: str | None = None
    ) -> "MeshModel":
        """The model of a run folder. One that was trained on arrays finds its inputs by their names."""
        bundle = load(run, device)
        if bundle.task.name != "direct":
            raise UserError(
                f"{run} answers task {bundle.task.name!r}, not on meshes: give `linearno predict` arrays, in "
                "a .npz or .mat file, or ask load(run) in Python"
            )
        data = open_run(run).data
        config = data.mesh_fields if isinstance(data, CasesConfig) else MeshFields.of(bundle.spec)
        faults = tuple(dict.fromkeys([*config.tolerate, *tolerate]))
        return cls(bundle, MeshFields.make(config.model_dump() | {"tolerate": faults}), memory)

    def source(self, file: CaseFile, given: Mapping[str, float] | None = None) -> CaseReader:
        """How to read that file; `given` numbers of the case go before those that lie beside it."""
        if extra := set(given or {}) - set(self.config.globals):
            known = ", ".join(self.config.globals) or "none"
            raise UserError(f"{extra.pop()!r} is no number that the model is told; those are: {known}")
        return CaseReader(self.config, read_table(file.path.parent), dict(given or {}))

    def predict(self, reader: Reader, file: CaseFile, given: Mapping[str, float] | None = None) -> Answer:
        case = self.source(file, given).read(reader, file, truth=False)
        began = time.perf_counter()
        sample = case.sample()
        inputs = None if sample.inputs is None else sample.inputs[None]
        prediction = self.bundle.predict(inputs, sample.coords[None], memory=self.memory)[0].numpy()
        seconds = time.perf_counter() - began
        for name in self.config.surface_targets:
            if case.surface is not None:
                own = self._channels(name)
                prediction[:, own] = np.where(case.surface[:, None], prediction[:, own], np.nan)
        return Answer(case, prediction, seconds, self._errors(case, prediction))

    def fields(self, answer: Answer) -> tuple[Arrays, dict[str, str]]:
        """What is written onto the mesh, and its units: predictions, and errors where the truth is known."""
        arrays: Arrays = {}
        for name in self.bundle.spec.fields:
            own = self._channels(name)
            arrays[name + PREDICTED] = self._whole(name, answer.prediction[:, own])
            if name in answer.case.found:
                difference = answer.prediction[:, own] - answer.case.targets[:, own]
                arrays[name + ERROR] = self._whole(name, difference)
        units = {
            name + ending: self.bundle.spec.units[channels[0]]
            for name, channels in self.bundle.spec.fields.items()
            for ending in (PREDICTED, ERROR)
            if channels[0] in self.bundle.spec.units
        }
        return arrays, units

    def write(self, reader: Reader, answer: Answer, out: Path) -> None:
        """The file of the case with the answer in it, whole or not at all."""
        arrays, units = self.fields(answer)
        ending, file = out.suffix.lower(), answer.case.file

        def write(temporary: Path) -> None:
            reader.call(commands.annotate, file, temporary, ending, self.config.location, arrays, units)

        write_atomically(out, write)

    def query(
        self,
        reader: Reader,
        file: CaseFile,
        places: Float[ndarray, "Q X"],
        given: Mapping[str, float] | None = None,
    ) -> Float[ndarray, "Q C"]:
        """The outputs of a case at any places (x, y, z), or in the coordinates of the model.

        Fields that the model is told are taken from the mesh.
        """
        source, axes = self.source(file, given), [AXES.index(axis) for axis in self.config.coords]
        if places.shape[1] not in (3, len(axes)):
            raise UserError(
                f"places have {places.shape[1]} coordinates, expected {', '.join(self.config.coords)}"
            )
        if places.shape[1] < 3:
            flat, places = places, np.zeros((len(places), 3))
            places[:, axes] = flat
        case = source.read(reader, file, truth=False)
        inputs = source.inputs_at(reader, file, places.astype(float), case)
        sample, here = case.sample(), torch.from_numpy(places[:, axes].astype(np.float32))
        told = None if sample.inputs is None else sample.inputs[None]
        field = self.bundle.encode(sample.coords[None], told, memory=self.memory or MEMORY)
        asked = torch.from_numpy(inputs)[None] if inputs.shape[1] else None
        return field.query(here[None], asked)[0].numpy()

    def _channels(self, name: str) -> list[int]:
        return [self.bundle.spec.outputs.index(channel) for channel in self.bundle.spec.fields[name]]

    def _whole(self, name: str, values: ndarray) -> ndarray:
        """A number at each point, or a vector: those in a plane get a third component, as viewers want it."""
        if values.shape[1] == 1 and name not in self.bundle.spec.vectors:
            return values[:, 0]
        parts = self.config.components.get(name, ())
        if parts and all(part in AXES for part in parts):
            vector = np.zeros((len(values), 3), dtype=values.dtype)
            vector[:, [AXES.index(part) for part in parts]] = values
            return vector
        return values

    def _errors(self, case: Case, prediction: ndarray) -> dict[str, float]:
        found = {}
        for name in case.found:
            truth, own = case.targets[:, self._channels(name)], prediction[:, self._channels(name)]
            size = float(np.sqrt(np.nansum(truth.astype(float) ** 2)))
            error = float(np.sqrt(np.nansum((own.astype(float) - truth) ** 2)))
            found[name] = error / size if size else float("nan")
        return found


def ending_for(path: Path) -> str:
    """Of the file to write for one to read: the same, where it can hold fields."""
    return ".vtp" if path.suffix.lower() == ".stl" else path.suffix.lower()


def require_writable(path: Path, out: Path) -> None:
    """An error before any work if the answer for `path` cannot be written as `out`."""
    own, wanted = path.suffix.lower(), out.suffix.lower()
    if own not in SUFFIXES:
        raise UserError(f"{path}: expected one of {', '.join(SUFFIXES)}, got {own or 'no ending'!r}")
    fit = (
        [own]
        if own in array_files.SUFFIXES
        else [ending for ending in WRITERS if own != ".stl" or ending in (".vtp", ".vtu", ".vtk")]
    )
    if wanted not in fit:
        raise UserError(f"{out}: the answer for a {own} file is written as one of {', '.join(fit)}")
    if out.exists() and out.samefile(path):
        raise UserError(f"{out} is the question itself; choose another name for the answer")


def predict_mesh(
    run: str | Path,
    mesh: str | Path,
    out: str | Path,
    *,
    device: str = "cpu",
    given: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Predict on a mesh file and write it anew with the answer; the error of each field that it tells."""
    path, target = Path(mesh), Path(out)
    file = case_file(path)
    require_writable(path, target)
    model = MeshModel.open(Path(run), device)
    with Reader() as reader:
        answer = model.predict(reader, file, given)
        model.write(reader, answer, target)
    return answer.errors


def query_mesh(
    run: str | Path,
    mesh: str | Path,
    places: Float[ndarray, "Q X"],
    *,
    device: str = "cpu",
    given: Mapping[str, float] | None = None,
) -> Float[ndarray, "Q C"]:
    """What the model says of a mesh at any places (Q, 2 or 3), in physical units."""
    model = MeshModel.open(Path(run), device)
    with Reader() as reader:
        return model.query(reader, case_file(Path(mesh)), places, given)


def write_summary(path: Path, answers: list[Answer], skipped: Mapping[str, str]) -> None:
    """A line for each case: points, seconds, and the error of each field whose truth is known."""
    names = list(dict.fromkeys(name for answer in answers for name in answer.errors))
    lines = [["case", "points", "seconds", *(f"relative_l2_{name}" for name in names), "skipped"]]
    for answer in answers:
        errors = [f"{answer.errors[name]:.6g}" if name in answer.errors else "" for name in names]
        lines.append([answer.case.file.name, str(answer.points), f"{answer.seconds:.4g}", *errors, ""])
    lines += [[name, "", "", *("" for _ in names), why] for name, why in skipped.items()]
    write_text(path, "".join(",".join(map(_quoted, line)) + "\n" for line in lines))


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(mark in cell for mark in ',"\n') else cell
