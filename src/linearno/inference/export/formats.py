"""File formats of exported models: write, run, and the code that uses a file without linearno."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from linearno.core.errors import UserError, shorten
from linearno.core.optional_deps import require_extra
from linearno.inference.export.io_signature import TensorSpec
from linearno.inference.export.trace import Fields, Surrogate, decompose, quiet

CARD = "linearno.json"  # in a torch file; `linearno` in the metadata of an ONNX file
EXAMPLE_SIZES = {"batch": 1, "points": 100, "observations": 20}
Runner = Callable[[Fields], Fields]


@dataclass(frozen=True)
class Format:
    """One file format.

    Args:
        suffix: of its files.
        write: a traced program, its surrogate and its card as the bytes of a file.
        load: the bytes of a file as a function of its inputs; None if the runtime is not installed.
        usage: lines of Python that load and run the file at a path.
        packages: of the extra `export` that `write` needs.
    """

    suffix: str
    write: Callable[[ExportedProgram, Surrogate, Mapping[str, Any]], bytes]
    load: Callable[[bytes, Surrogate], Runner | None]
    usage: Callable[[Path, Surrogate], list[str]]
    packages: tuple[str, ...] = ()

    def require_packages(self) -> None:
        for package in self.packages:
            require_extra(package, "export")


def _write_torch(program: ExportedProgram, surrogate: Surrogate, card: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={CARD: json.dumps(card)})
    return file.getvalue()


def _load_torch(content: bytes, surrogate: Surrogate) -> Runner:
    module = torch.export.load(io.BytesIO(content)).module()
    return lambda inputs: module(**inputs)


def _torch_usage(path: Path, surrogate: Surrogate) -> list[str]:
    inputs = ", ".join(f"{spec.name}=torch.rand{spec.shape(EXAMPLE_SIZES)}" for spec in surrogate.inputs)
    return [
        "import torch",
        f"model = torch.export.load({str(path)!r}).module()",
        f"{_unpacked(surrogate.outputs)} = model({inputs}).values()",
    ]


def _write_onnx(program: ExportedProgram, surrogate: Surrogate, card: Mapping[str, Any]) -> bytes:
    try:
        with quiet():
            exported = torch.onnx.export(
                decompose(program, {torch.ops.aten.cdist.default: _distances}),
                dynamo=True,
                input_names=[spec.name for spec in surrogate.inputs],
                output_names=[spec.name for spec in surrogate.outputs],
                dynamic_shapes={spec.name: spec.dynamic_axes for spec in surrogate.inputs},
                verbose=False,
            )
            assert exported is not None
            exported.model.metadata_props["linearno"] = json.dumps(card)
            return exported.model_proto.SerializeToString()
    except Exception as error:  # the exporter has no public error type
        reason = shorten(str(error).strip().splitlines()[-1], 200) if str(error).strip() else ""
        raise UserError(
            f"ONNX cannot express this model ({type(error).__name__}: {reason}); "
            "export it with --format torch"
        ) from error


def _load_onnx(content: bytes, surrogate: Surrogate) -> Runner | None:
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in surrogate.outputs]

    def run(inputs: Fields) -> Fields:
        outputs = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        return dict(zip(names, map(torch.from_numpy, outputs), strict=True))

    return run


def _onnx_usage(path: Path, surrogate: Surrogate) -> list[str]:
    inputs = (f'"{spec.name}": np.ones({spec.shape(EXAMPLE_SIZES)}, np.float32)' for spec in surrogate.inputs)
    return [
        "import numpy as np, onnxruntime",
        f"model = onnxruntime.InferenceSession({str(path)!r})",
        f"{_unpacked(surrogate.outputs)} = model.run(None, {{{', '.join(inputs)}}})",
    ]


def _unpacked(outputs: list[TensorSpec]) -> str:
    """The left side of an assignment that unpacks the outputs."""
    return ", ".join(spec.name for spec in outputs) + ("," if len(outputs) == 1 else "")


def _distances(points: Tensor, references: Tensor, p: float = 2, mode: int | None = None) -> Tensor:
    """Euclidean distances (…, N, R) by operators that ONNX has."""
    return (points.unsqueeze(-2) - references).square().sum(dim=-1).sqrt()


FORMATS = {
    "onnx": Format(".onnx", _write_onnx, _load_onnx, _onnx_usage, ("onnx", "onnxscript")),
    "torch": Format(".pt2", _write_torch, _load_torch, _torch_usage),
}
