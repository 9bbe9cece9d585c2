"""A user's own cases: any case of the folder, an uploaded mesh, and sliders for the numbers of a case.

Axes: K points or cells of a case, X coordinates, C channels.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.inference.on_meshes import MeshModel
from linearno.meshes.case_reader import Case, CaseReader
from linearno.meshes.discover import case_file, find_cases
from linearno.meshes.reader import commands
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader_process import Reader
from linearno.meshes.tables import Table, read_table_of
from linearno.studio.designs.base import Design, Parameter
from linearno.studio.geometry import Geometry, geometry_of

MESH_SUFFIXES = (".vtu", ".vtp", ".vtk", ".stl")
MAX_UPLOAD_BYTES = 256 * 10**6
SLIDER_MARGIN = 0.5  # of the training range, on each side


@dataclass
class CaseDesign(Design):
    """A case of a folder, or an uploaded one, read in the reader process.

    Args:
        spec: fields of the run.
        model: the surrogate for meshes.
        root: folder of the cases; None if it does not exist.
        pattern: pattern of the case files.
        ranges: range of each number in the training cases.
    """

    model: MeshModel | None = None
    root: Path | None = None
    pattern: str = "**/*"
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    title: ClassVar[str] = "Cases and uploaded meshes"

    def __post_init__(self) -> None:
        self._reader, self._uploads = Reader(), tempfile.TemporaryDirectory(prefix="linearno-studio-")
        self.files: dict[str, CaseFile] = {}
        if self.root is not None and self.root.exists():
            self.files = {file.name: file for file in find_cases(self.root, self.pattern)}
        self.case: Case | None = None
        self.chosen = ""
        if self.files:
            self.choose(next(iter(self.files)))

    def choose(self, name: str) -> None:
        """Read a case of the folder or an uploaded one."""
        if name not in self.files:
            raise UserError(f"no case {name!r} in the folder")
        self._read(self.files[name])
        self.chosen = name

    def upload(self, name: str, content: bytes) -> None:
        """Read a mesh from the browser; only the ending of its name is used."""
        suffix = Path(name).suffix.lower()
        if suffix not in MESH_SUFFIXES:
            raise UserError(f"upload a mesh that ends in {', '.join(MESH_SUFFIXES)}")
        if len(content) > MAX_UPLOAD_BYTES:
            raise UserError(
                f"the file has {len(content) / 1e6:.0f} MB; at most {MAX_UPLOAD_BYTES // 10**6} are read"
            )
        path = Path(self._uploads.name) / f"upload{len(self.files)}{suffix}"
        path.write_bytes(content)
        label = f"upload: {Path(name).name[:40]}"
        try:
            self._read(case_file(path))
        except UserError as error:
            path.unlink(missing_ok=True)
            raise UserError(str(error).replace(str(path), label)) from None
        self.files[label] = case_file(path)
        self.chosen = label

    def _read(self, file: CaseFile) -> None:
        assert self.model is not None
        table = read_table_of(file)
        shape = self._reader.call(commands.shape_of, file)
        case = CaseReader(self.model.fields, table, self._missing(file, table)).read(
            self._reader, file, truth=False
        )
        self.case, self._shape = case, shape
        names = self.model.fields.globals
        values = case.inputs[0, case.inputs.shape[1] - len(names) :] if names else ()
        self.parameters = {
            name: self._parameter(name, float(value)) for name, value in zip(names, values, strict=True)
        }

    def _missing(self, file: CaseFile, table: Table) -> dict[str, float]:
        """Numbers that an uploaded mesh does not hold: the middle of the training range."""
        assert self.model is not None
        if file in self.files.values() or not self.ranges:
            return {}
        summary = self._reader.call(commands.summarise, file)
        known = {part.name for part in summary.fields} | set(table.of(file))
        return {
            name: (low + high) / 2
            for name, (low, high) in self.ranges.items()
            if name in self.model.fields.globals and name not in known
        }

    def _parameter(self, name: str, value: float) -> Parameter:
        trained = self.ranges.get(name)
        low, high = trained or (value - abs(value) or -1.0, value + abs(value) or 1.0)
        margin = SLIDER_MARGIN * (high - low)
        unit = self.spec.units.get(name, "")
        return Parameter(
            name, name, value, min(low - margin, value), max(high + margin, value), 0.0, trained, unit
        )

    def _require_case(self) -> Case:
        if self.case is None:
            raise UserError("upload a mesh: the folder of the cases is not on this machine")
        return self.case

    def coords(self) -> Float[ndarray, "K X"]:
        return self._require_case().coords

    def inputs(self) -> Float[ndarray, "K C"] | None:
        inputs = self._require_case().inputs
        if not inputs.shape[1]:
            return None
        inputs = inputs.copy()
        for i, parameter in enumerate(self.parameters.values()):
            inputs[:, inputs.shape[1] - len(self.parameters) + i] = parameter.value
        return inputs

    def truth(self) -> Float[ndarray, "K C"] | None:
        """Fields of the file, unless a number was changed."""
        case = self._require_case()
        channels = case.inputs.shape[1]
        first = case.inputs[0, channels - len(self.parameters) :] if self.parameters else np.empty(0)
        values = [parameter.value for parameter in self.parameters.values()]
        return case.targets if case.found and np.allclose(first, values, rtol=1e-6, atol=0) else None

    def warnings(self) -> list[str]:
        """What is outside the training cases; without their ranges, of the numbers alone."""
        if self.model is None or self.model.bundle.ranges is None:
            return super().warnings()
        return [f"outside the training cases: {line}" for line in self.model.findings(self._edited_case())]

    def novelty(self) -> float | None:
        """Up to 1 the case is as near to a training case as these are to each other; None if unknown."""
        return None if self.model is None else self.model.novelty(self._edited_case())

    def _edited_case(self) -> Case:
        case, inputs = self._require_case(), self.inputs()
        return case if inputs is None else case._replace(inputs=inputs)

    def geometry(self) -> Geometry:
        assert self.model is not None
        self._require_case()
        points, cells = self._shape
        flat = len(self.model.fields.coords) < 3
        geometry = geometry_of(points[:, :2] if flat else points, None, cells, self.model.fields.location)
        return replace(geometry, flat=flat)

    def close(self) -> None:
        self._reader.close()
        self._uploads.cleanup()
