"""Parameters of a case computed from its OpenFOAM dictionaries and its other parameters.

    speed: norm(foam("0/U", "internalField"))
    angle: degrees(atan2(foam("0/U", "internalField")[1], foam("0/U", "internalField")[0]))

An expression is arithmetic with numbers, names of parameters, indices and the functions in `FUNCTIONS`;
nothing else is evaluated. `foam(file, entry)` is the number, or the list of numbers, of an entry in a
dictionary of the case; entries of subdictionaries are joined by dots, as in "boundaryField.inlet.value".
"""

import ast
import gzip
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from linearno.core.errors import UserError
from linearno.meshes.reader.mesh import CaseFile

MAX_LEVELS = 4  # folders above the file of a case in which its dictionaries are looked for
MAX_BYTES = 2**22  # of a dictionary that are read
MAX_MACROS = 20
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
TOKEN = re.compile(r'"[^"]*"|[{};()\[\]]|[^\s{};()\[\]"]+')


def _norm(values: Any) -> float:
    return math.sqrt(sum(value**2 for value in values))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "atan2")},
    **{name: getattr(math, name) for name in ("exp", "log", "log10", "degrees", "radians")},
    **{"abs": abs, "min": min, "max": max, "norm": _norm},
}
CONSTANTS = {"pi": math.pi}
OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def evaluate(name: str, text: str, case: CaseFile, known: Mapping[str, float]) -> float:
    """Value of the expression `text` of the parameter `name`, for a case.

    Args:
        name: of the parameter, for messages.
        text: the expression.
        case: whose dictionaries are read.
        known: parameters that the expression may name.
    """
    try:
        value = _value(parse(name, text), case, known)
    except (ArithmeticError, ValueError, TypeError, IndexError) as error:
        raise UserError(f"expressions.{name}: {text!r} cannot be computed ({error})") from None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"expressions.{name}: {text!r} is {value!r}, expected a finite number")
    return float(value)


def parse(name: str, text: str) -> ast.expr:
    """Syntax tree of an expression; an error if it contains anything but arithmetic."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        raise UserError(f"expressions.{name}: {text!r} is no expression such as 2*speed") from None
    allowed = (
        ast.expr_context,
        *OPERATORS,
        ast.BinOp,
        ast.UnaryOp,
        ast.Call,
        ast.Name,
        ast.Constant,
        ast.Subscript,
    )
    for node in ast.walk(tree):
        if not isinstance(node, allowed) or (isinstance(node, ast.Call) and _function(node) is None):
            functions = ", ".join(("foam", *FUNCTIONS))
            raise UserError(
                f"expressions.{name}: {text!r} may contain arithmetic and the functions {functions}"
            )
    return tree


def _function(node: ast.Call) -> str | None:
    known = isinstance(node.func, ast.Name) and (node.func.id in FUNCTIONS or node.func.id == "foam")
    return node.func.id if known and isinstance(node.func, ast.Name) and not node.keywords else None


def _value(node: ast.expr, case: CaseFile, known: Mapping[str, float]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in known and node.id not in CONSTANTS:
            raise ValueError(f"{node.id} is no parameter of the case")
        return known[node.id] if node.id in known else CONSTANTS[node.id]
    if isinstance(node, ast.Subscript):
        return _value(node.value, case, known)[int(_value(node.slice, case, known))]
    if isinstance(node, ast.Call):
        arguments = [_value(argument, case, known) for argument in node.args]
        name = _function(node) or ""
        return foam_entry(case, *arguments) if name == "foam" else FUNCTIONS[name](*arguments)
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left, case, known), _value(node.right, case, known))
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](_value(node.operand, case, known))
    raise ValueError(f"unexpected {type(node).__name__}")


def foam_entry(case: CaseFile, file: str, entry: str) -> Any:
    """A number, or a list of numbers, in an OpenFOAM dictionary of the case."""
    path = dictionary_path(case, file)
    if path is None:
        raise UserError(f"{case.path}: the case has no file {file}; expected it in the folder of the case")
    entries = read_dictionary(path, path.stat().st_mtime_ns)
    if entry not in entries:
        raise UserError(f"{path} has no entry {entry!r}; it has {', '.join(list(entries)[:12])}")
    numbers = [float(number) for number in re.findall(NUMBER, _without_dimensions(entries[entry]))]
    if not numbers:
        raise UserError(f"{path}: {entry} is {entries[entry][:60]!r}, expected a number or a vector")
    return numbers[0] if len(numbers) == 1 else numbers


def dictionary_path(case: CaseFile, file: str) -> Path | None:
    """The dictionary of a case: `file` in the folder of the case, or in `0.orig` instead of `0`; also .gz."""
    start = case.path.absolute()
    for folder in [start, *start.parents][: MAX_LEVELS + 1]:
        for name in (file, re.sub("^0/", "0.orig/", file)):
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    return path
    return None


@lru_cache(maxsize=64)
def read_dictionary(path: Path, modified: int) -> dict[str, str]:
    """Entries of an OpenFOAM dictionary by name, as text; macros such as $internalField are replaced."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        text = COMMENTS.sub(" ", file.read(MAX_BYTES).decode("utf-8", errors="replace"))
    entries: dict[str, str] = {}
    scope: list[str] = []
    words: list[str] = []
    depth = 0
    for token in TOKEN.findall(text):
        if token in "([":
            depth += 1
        elif token in ")]":
            depth -= 1
        if token == "{" and depth == 0:
            scope.append(words[-1] if words else "")
            words = []
        elif token == "}" and depth == 0:
            scope, words = scope[:-1], []
        elif token == ";" and depth == 0:
            if words:
                entries[".".join([*scope, words[0]])] = " ".join(words[1:])
            words = []
        else:
            words.append(token)
    return {name: _expanded(value, name, entries) for name, value in entries.items()}


def _expanded(value: str, name: str, entries: Mapping[str, str]) -> str:
    for _ in range(MAX_MACROS):
        found = re.search(r"\$:?\{?([\w.]+)\}?", value)
        if found is None:
            break
        scope = name.rpartition(".")[0]
        local = f"{scope}.{found[1]}" if scope else found[1]
        value = value.replace(found[0], entries.get(local, entries.get(found[1], "")))
    return value


def _without_dimensions(value: str) -> str:
    """Text without dimensions in square brackets, and without words that contain digits."""
    return re.sub(r"\b[A-Za-z_]\w*(<\w+>)?", " ", re.sub(r"\[[^\]]*\]", " ", value))
