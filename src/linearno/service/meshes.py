"""Meshes in the bodies of requests, read and written by the reader process.

Axes: K points or cells of a mesh, Q query points, X coordinates, C channels.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.inference import Bundle
from linearno.inference.on_meshes import MeshModel
from linearno.meshes.case_reader import Case, CaseReader
from linearno.meshes.discover import case_file
from linearno.meshes.reader.geometry import AXES
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader_process import Reader
from linearno.service.config import ServiceConfig
from linearno.service.errors import RequestError

SUFFIXES = {"vtu": ".vtu", "vtp": ".vtp", "vtk": ".vtk"}
FORBIDDEN_XML = (b"<!DOCTYPE", b"<!ENTITY")
XML_STARTS = (b"<?xml", b"<VTKFile")
LEGACY_START = b"# vtk DataFile"

R = TypeVar("R")


@dataclass(frozen=True)
class UploadedMesh:
    """A mesh in a folder of its own.

    Args:
        folder: temporary folder.
        file: the mesh.
        case: what the model takes of it.
        given: numbers of the case from the request.
    """

    folder: Path
    file: CaseFile
    case: Case
    given: Mapping[str, float]

    def delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class MeshService:
    """Reads meshes for a surrogate and writes predictions onto them, in a few reader processes.

    Args:
        bundle: the surrogate; `unavailable` says why it takes no meshes, if so.
        config: limits.
    """

    def __init__(self, bundle: Bundle, config: ServiceConfig):
        self.unavailable: str | None = None
        try:
            self.model: MeshModel | None = MeshModel.of(bundle)
        except UserError as error:
            self.model, self.unavailable = None, str(error)
        self._config = config
        self._root = Path(tempfile.mkdtemp(prefix="linearno-service-"))
        self._threads = ThreadPoolExecutor(config.readers, thread_name_prefix="meshes")
        self._idle: SimpleQueue[Reader] = SimpleQueue()
        self._readers = [Reader(time_limit=config.seconds / 2) for _ in range(config.readers)]
        for reader in self._readers:
            self._idle.put(reader)

    async def call(self, function: Callable[[], R]) -> R:
        """Call a function of this service in one of its threads, within the time limit."""
        try:
            async with asyncio.timeout(self._config.seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except TimeoutError:
            raise RequestError(504, f"the mesh was not read within {self._config.seconds:g} s") from None

    def read(self, body: bytes, kind: str, given: Mapping[str, float]) -> UploadedMesh:
        """Read a mesh in the format `kind`; its file is kept until `delete`."""
        model = self._require_model()
        _require_plain(body, kind)
        folder = Path(tempfile.mkdtemp(dir=self._root))
        path = folder / f"mesh{SUFFIXES[kind]}"
        try:
            path.write_bytes(body)
            with self._reader(path) as reader:
                file = case_file(path)
                case = model.read(reader, file, given)
                if len(case.coords) > self._config.points:
                    raise RequestError(
                        413, f"{len(case.coords)} points; at most {self._config.points} are accepted"
                    )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return UploadedMesh(folder, file, case, given)

    def write(self, mesh: UploadedMesh, values: Float[ndarray, "K C"], seconds: float) -> bytes:
        """The mesh with the predicted fields, in its own format."""
        model = self._require_model()
        out = mesh.folder / f"predicted{mesh.file.path.suffix}"
        with self._reader(mesh.file.path) as reader:
            model.write(reader, model.as_prediction(mesh.case, torch.from_numpy(values), seconds), out)
        return out.read_bytes()

    def locate(
        self, mesh: UploadedMesh, points: Float[ndarray, "Q _"]
    ) -> tuple[Float[ndarray, "Q X"], Float[ndarray, "Q C"] | None]:
        """Coordinates of query points as the model takes them, and its inputs there if it needs them."""
        model = self._require_model()
        axes = [AXES.index(axis) for axis in model.fields.coords]
        if points.ndim != 2 or points.shape[1] not in (3, len(axes)):
            wanted = f"(points, 3) or (points, {len(axes)})"
            raise RequestError(400, f"points have shape {points.shape}; expected {wanted}")
        in_space = np.zeros((len(points), 3))
        in_space[:, axes if points.shape[1] < 3 else [0, 1, 2]] = points
        inputs = None
        if mesh.case.inputs.shape[1] and model.bundle.streams_queries:
            with self._reader(mesh.file.path) as reader:
                source = CaseReader(model.fields, given=mesh.given)
                inputs = source.inputs_at(reader, mesh.file, in_space, mesh.case)
        return in_space[:, axes].astype(np.float32), inputs

    def close(self) -> None:
        """Stop the readers and delete all meshes."""
        for reader in self._readers:
            reader.interrupt()
        self._threads.shutdown()
        for reader in self._readers:
            reader.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def _require_model(self) -> MeshModel:
        if self.model is None:
            raise RequestError(415, f"this run takes no meshes: {self.unavailable}")
        return self.model

    @contextmanager
    def _reader(self, path: Path) -> Iterator[Reader]:
        """An idle reader; errors do not name files of the server."""
        reader = self._idle.get()
        try:
            yield reader
        except RequestError:
            raise
        except UserError as error:
            raise RequestError(400, str(error).replace(str(path), "the mesh")) from None
        finally:
            self._idle.put(reader)


def _require_plain(body: bytes, kind: str) -> None:
    """Refuse files that are not of the format, and XML with entities, before VTK sees them."""
    start = body[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    if kind == "vtk":
        if not start.startswith(LEGACY_START):
            raise RequestError(400, "the body is not a legacy VTK file; it begins otherwise")
        return
    if not start.startswith(XML_STARTS):
        raise RequestError(400, f"the body is not a .{kind} file; it begins otherwise")
    if any(mark in body for mark in FORBIDDEN_XML):
        raise RequestError(400, f"the .{kind} file has a document type or entities, which are not accepted")
