"""Export a run as one file that predicts without linearno, and compare the file with the model."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from linearno.core.atomic_io import read_json, writable_folder, write_bytes
from linearno.core.errors import UserError
from linearno.core.provenance import commit, versions
from linearno.inference.bundle import Bundle, load
from linearno.inference.bundle_files import HOW
from linearno.inference.export.formats import FORMATS, Runner
from linearno.inference.export.io_signature import TensorSpec
from linearno.inference.export.trace import Fields, Surrogate, trace
from linearno.nn.protocol import fixed_grid
from linearno.ops import backend
from linearno.training import Rollout, Timed

FORMAT = 1
TOLERANCE = 1e-4  # difference of outputs, relative to the largest value
CHECKED_SIZES = [  # one point, about as many as were traced, and many more
    {"batch": 1, "points": 1, "observations": 1},
    {"batch": 2, "points": 64, "observations": 21},
    {"batch": 3, "points": 1001, "observations": 130},
]

FormatName = Literal["onnx", "torch"]


class Exported(NamedTuple):
    """A written file.

    Args:
        path: of the file.
        bytes: its size.
        difference: largest difference from the model, relative to the largest value; None if not checked.
        inputs: tensors that it takes.
        outputs: tensors that it returns.
        notes: limitations to know before use.
        usage: lines of Python that load and run it.
    """

    path: Path
    bytes: int
    difference: float | None
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    notes: list[str]
    usage: list[str]


def export_run(run: Path, path: Path, format: FormatName, *, tolerance: float = TOLERANCE) -> Exported:
    """Write the surrogate of a run folder as one file, unless its outputs differ from those of the model.

    Args:
        run: run folder.
        path: file to write, .onnx or .pt2.
        format: "onnx", or "torch" for a program of `torch.export`.
        tolerance: largest allowed difference, relative to the largest value.
    """
    kind = FORMATS[format]
    if path.suffix != kind.suffix:
        raise UserError(f"{path}: a file of format {format} ends in {kind.suffix}")
    kind.require_packages()
    bundle = load(run)
    surrogate = Surrogate(bundle)
    writable_folder(path.parent)
    with torch.no_grad(), backend("plain"):  # before tracing: raises errors of the model itself
        expected = [surrogate(**surrogate.random_inputs(sizes)) for sizes in CHECKED_SIZES]
    content = kind.write(trace(surrogate), surrogate, _card(run, surrogate))
    runner = kind.load(content, surrogate)
    difference = None if runner is None else _largest_difference(runner, surrogate, expected)
    if difference is not None and not difference <= tolerance:
        raise UserError(
            f"{path} was not written: its outputs differ from the model's by {difference:.1e} of the largest "
            f"value, and {tolerance:.1e} is allowed"
        )
    write_bytes(path, content)
    usage = kind.usage(path, surrogate)
    signature = surrogate.inputs, surrogate.outputs
    return Exported(path, len(content), difference, *signature, _notes(bundle), usage)


@torch.no_grad()
def _largest_difference(runner: Runner, surrogate: Surrogate, expected: list[Fields]) -> float:
    differences = []
    for sizes, fields in zip(CHECKED_SIZES, expected, strict=True):
        found = runner(surrogate.random_inputs(sizes))
        for name, field in fields.items():
            differences.append((found[name] - field).abs().max() / field.abs().max().clamp(min=1e-30))
    return torch.stack(differences).max().item()  # NaN stays NaN


def _card(run: Path, surrogate: Surrogate) -> dict[str, Any]:
    """Metadata of the file: its tensors, and `model.json` of the run folder."""
    card = read_json(run / "model.json", how=HOW)
    units = card["spec"].get("units", {})
    return {
        "format": FORMAT,
        "inputs": [spec.card(units) for spec in surrogate.inputs],
        "outputs": [spec.card(units) for spec in surrogate.outputs],
        "exported": {"commit": commit(), "versions": versions()},
        **{key: card[key] for key in card if key != "format"},
    }


def _notes(bundle: Bundle) -> list[str]:
    notes = []
    if grid := fixed_grid(bundle.model):
        size = "×".join(map(str, grid))
        notes.append(f"fixed to its grid of {size}: points in C order, and only the batch size is free")
    if isinstance(bundle.task, Rollout):
        notes.append("one time step: to continue, drop the oldest frame and append the output")
    if isinstance(bundle.task, Timed):
        notes.append("time runs from 0, the first frame, to 1, the last")
    if bundle.precision != "fp32":
        notes.append(f"computes in fp32; the run was evaluated in {bundle.precision}")
    return notes
