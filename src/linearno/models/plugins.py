"""Models and benchmarks in files of a user's own."""

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from linearno.core.errors import UserError, require
from linearno.data.benchmark import DATASETS
from linearno.models.registry import MODELS

EXAMPLE = "see examples/own_model.py"
_IMPORTED: dict[Path, ModuleType] = {}


def import_definitions(sources: Iterable[str]) -> None:
    """Import files (`mynet.py`) or modules (`mypackage.nets`) that register models or benchmarks.

    The code of a file runs, as with `python FILE`; its folder is searched for imports after all others.
    """
    for source in sources:
        before = {*MODELS, *DATASETS}
        known = _import_file(Path(source)) if source.endswith(".py") else _import_module(source)
        if not known and before == {*MODELS, *DATASETS}:
            raise UserError(f'{source} defines no model: put @model("name") above a class; {EXAMPLE}')


def _import_file(path: Path) -> bool:
    """Whether the file was imported before."""
    place = require(path, how="give a Python file that defines a model").resolve()
    if place in _IMPORTED:
        return True
    name = path.stem if path.stem not in sys.modules else f"linearno_import_{len(_IMPORTED)}_{path.stem}"
    spec = spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _does_not_import(str(path), error, place) from error
    _IMPORTED[place] = module
    return False


def _import_module(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(f"no module {name!r} is installed; give a file that ends in .py") from None
        raise _does_not_import(name, error) from error
    except Exception as error:
        raise _does_not_import(name, error) from error
    return False


def _does_not_import(source: str, error: Exception, place: Path | None = None) -> UserError:
    if isinstance(error, UserError):
        return UserError(f"{source}: {error}")
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(place)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    where = "" if line is None else f" in line {line}"
    reason = str(error).splitlines()[0] if str(error) else ""
    return UserError(f"{source} does not import: {type(error).__name__}{where}: {reason}")
