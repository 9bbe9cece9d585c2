"""A run as one file that answers without this library, checked before it is left on the disk."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from linearno.core.atomic_io import read_json, writable_folder, write_bytes
from linearno.core.errors import UserError
from linearno.core.provenance import commit, versions
from linearno.inference.bundle import Bundle, load
from linearno.inference.bundle_files import HOW
from linearno.inference.export.formats import FORMATS, Ask
from linearno.inference.export.io_signature import Port
from linearno.inference.export.trace import Surrogate, trace
from linearno.nn.protocol import fixed_grid
from linearno.ops import backend
from linearno.training import Rollout, Timed

FORMAT = 1
TOLERANCE = 1e-4  # of the largest value, between the file's answers and the model's
SIZES = [  # that a file is tried at: one point, about what was traced, and many more
    {"batch": 1, "points": 1, "observations": 1},
    {"batch": 2, "points": 64, "observations": 21},
    {"batch": 3, "points": 1001, "observations": 130},
]

FormatName = Literal["onnx", "torch"]


class Exported(NamedTuple):
    """What was written, and how it is used."""

    path: Path
    bytes: int
    difference: float | None  # the largest one seen, of the largest value; None where nothing could run it
    asks: list[Port]
    gives: list[Port]
    remarks: list[str]
    lines: list[str]


def export_run(run: Path, path: Path, format: FormatName, *, tolerance: float = TOLERANCE) -> Exported:
    """Write the surrogate of a run folder as one file; nothing where its answers differ from the model's."""
    kind = FORMATS[format]
    if path.suffix != kind.ending:
        raise UserError(f"{path}: a file of format {format} ends in {kind.ending}")
    kind.require()
    bundle = load(run)
    surrogate = Surrogate(bundle)
    writable_folder(path.parent)
    with torch.no_grad(), backend("plain"):
        truths = [surrogate(**surrogate.question(sizes)) for sizes in SIZES]  # refuses what cannot be asked
    content = kind.write(trace(surrogate), surrogate, _card(run, surrogate))
    ask = kind.open(content, surrogate)
    difference = None if ask is None else _largest_difference(ask, surrogate, truths)
    if difference is not None and not difference <= tolerance:
        raise UserError(
            f"{path} was not written: its answers differ from the model's by {difference:.1e} of the largest "
            f"value, and {tolerance:.1e} is allowed"
        )
    write_bytes(path, content)
    lines = kind.lines(path, surrogate)
    return Exported(path, len(content), difference, surrogate.asks, surrogate.gives, _remarks(bundle), lines)


@torch.no_grad()
def _largest_difference(ask: Ask, surrogate: Surrogate, truths: list[dict[str, torch.Tensor]]) -> float:
    found = []
    for sizes, truth in zip(SIZES, truths, strict=True):
        told = ask(surrogate.question(sizes))
        for name, expected in truth.items():
            found.append((told[name] - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    return torch.stack(found).max().item()  # NaN stays NaN


def _card(run: Path, surrogate: Surrogate) -> dict[str, Any]:
    """What the file says of itself: its tensors, and all that the run folder says of the model."""
    card = read_json(run / "model.json", how=HOW)
    units = card["spec"].get("units", {})
    return {
        "format": FORMAT,
        "inputs": [port.card(units) for port in surrogate.asks],
        "outputs": [port.card(units) for port in surrogate.gives],
        "exported": {"commit": commit(), "versions": versions()},
        **{key: card[key] for key in card if key != "format"},
    }


def _remarks(bundle: Bundle) -> list[str]:
    """What one should know of this graph."""
    remarks = []
    if grid := fixed_grid(bundle.model):
        size = "×".join(map(str, grid))
        remarks.append(f"tied to its grid of {size}: points in C order, and only the batch is free")
    if isinstance(bundle.task, Rollout):
        remarks.append("one step in time: to march on, drop the oldest frame and append the answer")
    if isinstance(bundle.task, Timed):
        remarks.append("time runs from 0, the first frame, to 1, the last")
    if bundle.precision != "fp32":
        remarks.append(f"answers in fp32; the run was scored in {bundle.precision}")
    return remarks
