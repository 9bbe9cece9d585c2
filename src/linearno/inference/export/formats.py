"""Files that carry a graph: how they are made, opened, and used without this library."""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from linearno.core.errors import UserError, shorten
from linearno.core.optional_deps import require_extra
from linearno.inference.export.trace import Fields, Surrogate, decompose, quiet

CARD = "linearno.json"  # in a torch file; the metadata of an ONNX file has it as `linearno`
EXAMPLE = {"batch": 1, "points": 100, "observations": 20}
Ask = Callable[[Fields], Fields]


@dataclass(frozen=True)
class Format:
    """One kind of file."""

    ending: str
    write: Callable[[ExportedProgram, Surrogate, Mapping[str, Any]], bytes]
    open: Callable[[bytes, Surrogate], Ask | None]  # None where what runs such files is not installed
    lines: Callable[[Path, Surrogate], list[str]]  # of Python, which load and run a file
    needs: tuple[str, ...] = ()  # packages of the extra `export`

    def require(self) -> None:
        for package in self.needs:
            require_extra(package, "export")


def _write_torch(program: ExportedProgram, surrogate: Surrogate, card: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={CARD: json.dumps(card)})
    return file.getvalue()


def _open_torch(content: bytes, surrogate: Surrogate) -> Ask:
    module = torch.export.load(io.BytesIO(content)).module()
    return lambda asked: module(**asked)


def _torch_lines(path: Path, surrogate: Surrogate) -> list[str]:
    asked = ", ".join(f"{port.name}=torch.rand{port.shape(EXAMPLE)}" for port in surrogate.asks)
    return [
        "import torch",
        f"model = torch.export.load({str(path)!r}).module()",
        f"{_names(surrogate)} = model({asked}).values()",
    ]


def _write_onnx(program: ExportedProgram, surrogate: Surrogate, card: Mapping[str, Any]) -> bytes:
    with quiet(), _one_line("ONNX"):
        made = torch.onnx.export(
            decompose(program, {torch.ops.aten.cdist.default: _distances}),
            dynamo=True,
            input_names=[port.name for port in surrogate.asks],
            output_names=[port.name for port in surrogate.gives],
            dynamic_shapes={port.name: port.free for port in surrogate.asks},
            verbose=False,
        )
    assert made is not None
    made.model.metadata_props["linearno"] = json.dumps(card)
    return made.model_proto.SerializeToString()


@contextmanager
def _one_line(format: str) -> Iterator[None]:
    """An operator that a format does not have is a message, not a report of the exporter."""
    try:
        yield
    except Exception as error:  # of many kinds, none of them public
        reason = shorten(str(error).strip().splitlines()[-1], 200) if str(error).strip() else ""
        raise UserError(
            f"{format} cannot express this model ({type(error).__name__}: {reason}); "
            "export it with --format torch"
        ) from error


def _open_onnx(content: bytes, surrogate: Surrogate) -> Ask | None:
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [port.name for port in surrogate.gives]

    def ask(asked: Fields) -> Fields:
        told = session.run(names, {name: tensor.numpy() for name, tensor in asked.items()})
        return {name: torch.from_numpy(array) for name, array in zip(names, told, strict=True)}

    return ask


def _onnx_lines(path: Path, surrogate: Surrogate) -> list[str]:
    asked = (f'"{port.name}": np.ones({port.shape(EXAMPLE)}, np.float32)' for port in surrogate.asks)
    return [
        "import numpy as np, onnxruntime",
        f"model = onnxruntime.InferenceSession({str(path)!r})",
        f"{_names(surrogate)} = model.run(None, {{{', '.join(asked)}}})",
    ]


def _names(surrogate: Surrogate) -> str:
    """What the answers are assigned to."""
    names = [port.name for port in surrogate.gives]
    return f"{names[0]}," if len(names) == 1 else ", ".join(names)


def _distances(points: Tensor, references: Tensor, p: float = 2, mode: int | None = None) -> Tensor:
    """Euclidean distances (…, N, R) in operators that ONNX has."""
    return (points.unsqueeze(-2) - references).square().sum(dim=-1).sqrt()


FORMATS = {
    "onnx": Format(".onnx", _write_onnx, _open_onnx, _onnx_lines, ("onnx", "onnxscript")),
    "torch": Format(".pt2", _write_torch, _open_torch, _torch_lines),
}
