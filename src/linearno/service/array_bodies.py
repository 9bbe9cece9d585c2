"""Arrays in the bodies of requests and replies: npz and JSON.

An npz file is a zip archive of arrays. Its directory and the headers of its arrays are checked before memory
is allocated; types other than real numbers, such as pickled objects, are refused.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.lib import format as npy

from linearno.core.errors import brief
from linearno.service.errors import RequestError

MAX_ARRAYS = 64
MAX_DIMENSIONS = 8
MAX_HEADER = 4096  # bytes of the header of an array
NUMERIC_KINDS = "fiub"
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may allocate large dictionaries
HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(body: bytes, limit: int) -> dict[str, ndarray]:
    """Arrays of an npz file whose uncompressed size is at most `limit` bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS:
                raise RequestError(413, f"npz: {len(members)} arrays; at most {MAX_ARRAYS} are accepted")
            if (size := sum(member.file_size for member in members)) > limit:
                raise RequestError(413, f"npz: {size} bytes uncompressed; at most {limit} are accepted")
            return {_array_name(member): _read_array(archive, member) for member in members}
    except RequestError:
        raise
    except Exception:  # a damaged file makes these libraries raise almost anything
        raise RequestError(400, "npz: truncated, encrypted or not an npz file of plain arrays") from None


def _array_name(member: zipfile.ZipInfo) -> str:
    name = member.filename.removesuffix(".npy")
    if name == member.filename or not name or "/" in name or "\\" in name or len(name) > 200:
        raise RequestError(400, f"npz: {brief(member.filename)} is not the name of an array")
    return name


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ndarray:
    """One array; its size must be that of the archive's directory, which was checked."""
    if member.compress_type not in COMPRESSIONS:
        raise RequestError(400, "npz: expected arrays that are stored or deflated")
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in HEADER_READERS:
            raise RequestError(400, f"npz: {brief(member.filename)} has an unknown version {version}")
        shape, fortran, dtype = HEADER_READERS[version](file, max_header_size=MAX_HEADER)
        if dtype.hasobject or dtype.kind not in NUMERIC_KINDS:
            raise RequestError(400, f"npz: {brief(member.filename)} has type {dtype}; expected real numbers")
        left = member.file_size - file.tell()
        if len(shape) > MAX_DIMENSIONS or min(shape, default=1) < 0 or prod(shape) * dtype.itemsize != left:
            raise RequestError(400, f"npz: {brief(member.filename)} does not have the size of its shape")
        content = file.read(left)
        if len(content) != left:
            raise RequestError(400, f"npz: {brief(member.filename)} is truncated")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def read_json_arrays(body: bytes) -> dict[str, ndarray]:
    """Arrays of a JSON object {name: nested lists of numbers}."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError(400, "JSON: the body is not valid JSON") from None
    if not isinstance(values, dict) or len(values) > MAX_ARRAYS:
        raise RequestError(400, f"JSON: expected an object of at most {MAX_ARRAYS} arrays by name")
    return {name: _json_array(name, value) for name, value in values.items()}


def _json_array(name: str, value: Any) -> ndarray:
    try:
        array = np.array(value)
    except (ValueError, OverflowError, RecursionError):
        raise RequestError(400, f"JSON: {brief(name)} is not an array: its rows differ in length") from None
    if array.dtype.kind not in NUMERIC_KINDS or array.ndim > MAX_DIMENSIONS:
        raise RequestError(400, f"JSON: {brief(name)} is not an array of numbers")
    return array


def write_npz(arrays: Mapping[str, ndarray]) -> bytes:
    target = io.BytesIO()
    np.savez(target, allow_pickle=False, **dict(arrays))
    return target.getvalue()


def write_json_arrays(arrays: Mapping[str, ndarray]) -> bytes:
    """A JSON object of nested lists; numbers that are not finite are null."""
    values: dict[str, Any] = {}
    for name, array in arrays.items():
        finite = np.isfinite(array)
        if not finite.all():
            array = array.astype(object)
            array[~finite] = None
        values[name] = array.tolist()
    return json.dumps(values, separators=(",", ":")).encode()
