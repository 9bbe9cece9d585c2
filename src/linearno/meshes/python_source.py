"""Write the cases that a user's Python function yields to files, which are then read like other cases."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linearno.core.atomic_io import write_atomically
from linearno.core.errors import UserError, did_you_mean
from linearno.meshes.reader.array_files import build_mesh
from linearno.meshes.reader.mesh import NUMERIC_KINDS

EXPECTED = "expected mappings of names to arrays: points (N, 2 or 3), fields (N, …), numbers of the case"


def is_callable_name(text: str) -> bool:
    """Whether the text is `module:function` and not a path."""
    module, colon, function = text.partition(":")
    names = [*module.split("."), function]
    return bool(colon) and all(name.isidentifier() for name in names) and not Path(text).exists()


def write_cases_of(text: str, folder: Path, tick: Callable[[int], None]) -> list[Path]:
    """Call the function `text` and write each case that it yields to an .npz file in `folder`."""
    paths: list[Path] = []
    for number, (name, arrays) in enumerate(_cases(text)):
        path = folder / f"{name or f'case_{number:04d}'}.npz"
        if path in paths:
            raise UserError(f"{text} yields two cases with the name {name!r}")
        try:
            build_mesh(arrays, {})
        except UserError as error:
            raise UserError(f"{text}: case {name or number} {error}") from None

        def write(temporary: Path, arrays: dict[str, Any] = arrays) -> None:
            with temporary.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)

        write_atomically(path, write)
        paths.append(path)
        tick(1)
    if not paths:
        raise UserError(f"{text} yields no cases; {EXPECTED}")
    return paths


def _cases(text: str) -> Iterator[tuple[str | None, dict[str, Any]]]:
    for item in _function(text)():
        if not isinstance(item, Mapping):
            raise UserError(f"{text} yields {type(item).__name__}; {EXPECTED}")
        arrays = {str(name): np.asarray(values) for name, values in item.items() if name != "name"}
        for name, values in arrays.items():
            if values.dtype.kind not in NUMERIC_KINDS:
                raise UserError(f"{text}: {name!r} is no array of numbers; {EXPECTED}")
        case = None if item.get("name") is None else str(item["name"])
        if case is not None and (Path(case).name != case or case.startswith(".")):
            raise UserError(f"{text}: {case!r} cannot be the name of a file")
        yield case, arrays


def _function(text: str) -> Callable[[], Iterable[Any]]:
    module, _, name = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import {module!r} ({error}); run the command in its folder") from None
    if not callable(getattr(found, name, None)):
        raise UserError(f"{module} has no function {name!r}; {did_you_mean(name, vars(found))}")
    return getattr(found, name)
