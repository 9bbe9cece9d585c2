"""Malformed and malicious uploads, each of which a service must refuse with a 4xx and one line."""

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

VTU = """<?xml version="1.0"?>{doctype}
<VTKFile type="UnstructuredGrid" version="0.1" byte_order="LittleEndian"><UnstructuredGrid>
<Piece NumberOfPoints="{points}" NumberOfCells="{cells}"><PointData>{data}</PointData>
<Points><DataArray type="Float32" NumberOfComponents="3" format="ascii">{coordinates}</DataArray></Points>
<Cells><DataArray type="Int64" Name="connectivity" format="ascii">{corners}</DataArray>
<DataArray type="Int64" Name="offsets" format="ascii">{offsets}</DataArray>
<DataArray type="UInt8" Name="types" format="ascii">{types}</DataArray></Cells></Piece>
</UnstructuredGrid></VTKFile>"""
TRIANGLE = {
    "doctype": "",
    "points": 3,
    "cells": 1,
    "data": "",
    "coordinates": "0 0 0 1 0 0 0 1 0",
    "corners": "0 1 2",
    "offsets": "3",
    "types": "5",
}
LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))


class Upload(NamedTuple):
    """A request: name of the attack, path, content type, body, further headers.

    Args:
        slow: seconds between the bytes; 0: all at once.
    """

    name: str
    path: str
    kind: str
    body: bytes
    headers: dict[str, str]
    slow: float = 0.0


class Executed:
    """An object whose unpickling creates a file, by which an execution is noticed."""

    def __init__(self, mark: str):
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (self.mark, "w")


def uploads(field: str, shape: tuple[int, ...], mark: str, seed: int = 0) -> Iterator[Upload]:
    """Uploads without end, in turns of all attacks; `field` and `shape` are those of a valid request.

    Args:
        field: name of an input of the run.
        shape: its shape.
        mark: path of a file that an executed pickle would create.
        seed: seed of damaged bytes.
    """
    rng = np.random.default_rng(seed)
    while True:
        yield from _arrays(rng, field, shape, mark)
        yield from _meshes(rng)
        yield from _requests(rng, field, shape)


def npz_bytes(**arrays: np.ndarray) -> bytes:
    target = io.BytesIO()
    np.savez(target, allow_pickle=True, **arrays)
    return target.getvalue()


def zip_bytes(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


def npy_bytes(header: str, content: bytes = b"") -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def _arrays(rng: np.random.Generator, field: str, shape: tuple[int, ...], mark: str) -> Iterator[Upload]:
    valid = npz_bytes(**{field: rng.normal(size=shape).astype(np.float32)})

    def upload(name: str, body: bytes, kind: str = "x-npz") -> Upload:
        return Upload(name, "/predict", kind, body, {})

    def member(header: str, content: bytes = b"", name: str = f"{field}.npy") -> bytes:
        return zip_bytes({name: npy_bytes(header, content)})

    declared = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }"
    yield upload("truncated npz", valid[: int(rng.integers(1, len(valid) - 30))])
    damaged = bytearray(valid)
    damaged[30 : len(valid) - 60 : 7] = bytes(len(range(30, len(valid) - 60, 7)))
    yield upload("damaged npz", bytes(damaged))
    yield upload("random bytes", rng.bytes(2000))
    yield upload("declares terabytes", member(declared % "999999999999"))
    yield upload("declares a negative size", member(declared % "-1"))
    yield upload("declares an overflowing size", member(declared % "9223372036854775807, 4, 9"))
    yield upload("zip bomb", zip_bytes({f"{field}.npy": bytes(400_000_000)}, zipfile.ZIP_DEFLATED))
    yield upload("lzma member", zip_bytes({f"{field}.npy": valid}, zipfile.ZIP_LZMA))
    objects = np.array([Executed(mark)] * 2, dtype=object)
    yield upload("pickled array", npz_bytes(**{field: objects}))
    yield upload("pickle", pickle.dumps(Executed(mark)))
    yield upload("code in a header", member("{'descr': __import__('os').system('id'), 'shape': (1,)}"))
    yield upload("deeply nested header", member("(" * 3000))
    yield upload("path as a name", member(declared % "1", bytes(4), "../../etc/passwd.npy"))
    yield upload("text array", npz_bytes(**{field: np.array(["/etc/passwd"])}))
    yield upload("NaN", npz_bytes(**{field: np.full(shape, np.nan, np.float32)}))
    yield upload("wrong shape", npz_bytes(**{field: np.ones((3, *shape, 2), np.float32)}))
    yield upload("unknown array", npz_bytes(**{"../secret": np.ones(3)}))
    yield upload("deeply nested JSON", b"[" * 90_000, "json")
    yield upload("object in JSON", b'{"%s": {"path": "/etc/passwd"}}' % field.encode(), "json")
    yield upload("long number in JSON", b'{"%s": [%s]}' % (field.encode(), b"9" * 50_000), "json")
    yield upload("ragged JSON", b'{"%s": [[1, 2], [3]]}' % field.encode(), "json")
    yield upload("truncated JSON", b'{"%s": [[1, 2' % field.encode(), "json")


def _meshes(rng: np.random.Generator) -> Iterator[Upload]:
    def vtu(name: str, **changes: object) -> Upload:
        return Upload(name, "/predict", "x-vtu", VTU.format(**TRIANGLE | changes).encode(), {})

    valid = VTU.format(**TRIANGLE).encode()
    cut = int(rng.integers(60, len(valid) - 200))
    yield Upload("truncated VTU", "/predict", "x-vtu", valid[:cut], {})
    yield vtu("VTU declares many points", points=10**10)
    yield vtu("VTU declares many cells", cells=10**12)
    yield vtu("VTU with a corner outside", corners="0 1 999999999")
    yield vtu("VTU with a negative corner", corners="0 1 -7")
    yield vtu("VTU with wrong offsets", offsets="300000000")
    yield vtu("VTU with an unknown cell", types="251")
    yield vtu("VTU with NaN points", coordinates="nan " * 9)
    yield vtu(
        "XML entity of a file", doctype='<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>', data="&e;"
    )
    yield vtu("billion laughs", doctype=f'<!DOCTYPE x [<!ENTITY l0 "lol">{LAUGHS}]>', data="&l9;")
    yield Upload("deeply nested XML", "/predict", "x-vtp", b"<VTKFile>" + b"<a>" * 100_000, {})
    utf16 = VTU.format(**TRIANGLE | {"doctype": "<!DOCTYPE x>"}).encode("utf-16")
    yield Upload("entities in UTF-16", "/predict", "x-vtu", utf16, {})
    legacy = b"# vtk DataFile Version 3.0\nx\n%s\nDATASET POLYDATA\nPOINTS %s float\n"
    yield Upload("VTK declares points", "/predict", "x-vtk", legacy % (b"ASCII", b"99999999999"), {})
    yield Upload("VTK binary rest", "/predict", "x-vtk", legacy % (b"BINARY", b"1000") + rng.bytes(5000), {})
    yield Upload("script as VTK", "/predict", "x-vtk", b"#!/bin/sh\nid\n", {})
    noise = zlib.compress(rng.bytes(500))
    appended = b'<?xml version="1.0"?><VTKFile type="PolyData" compressor="vtkZLibDataCompressor">'
    yield Upload("damaged blocks", "/predict", "x-vtp", appended + b"<AppendedData>_" + noise, {})


def _requests(rng: np.random.Generator, field: str, shape: tuple[int, ...]) -> Iterator[Upload]:
    valid = npz_bytes(**{field: rng.normal(size=shape).astype(np.float32)})

    def upload(name: str, path: str = "/predict", kind: str = "x-npz", **headers: str) -> Upload:
        return Upload(name, path, kind, valid, {k.replace("_", "-"): v for k, v in headers.items()})

    yield upload("wrong content type", kind="x-www-form-urlencoded")
    yield upload("npz as JSON", kind="json")
    yield upload("npz as VTU", kind="x-vtu")
    yield upload("compressed body", content_encoding="gzip")
    yield upload("path of the server", "/predict/../../etc/passwd")
    yield upload("unknown state", "/query?state=../../etc/passwd")
    yield upload("file as a state", "/query?state=%2Fetc%2Fpasswd%00")
    yield upload("steps out of range", "/predict?steps=999999999")
    yield upload("number that is none", "/predict?given=speed%3Dinf0")
    yield upload("too large", content_length=str(10**12))
    yield Upload("empty", "/predict", "x-npz", b"", {})
    yield Upload(
        "slow sender", "/predict", "x-npz", valid[:40], {"content-length": str(len(valid))}, slow=0.1
    )
