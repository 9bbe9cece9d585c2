"""Write a `dataset.yaml` with a comment for every field."""

import textwrap
from collections.abc import Iterable

import yaml

from linearno.meshes.config import CasesConfig
from linearno.meshes.infer_schema import FolderSummary
from linearno.meshes.reader.commands import FieldSummary

WIDTH = 100
COMMENTS: dict[tuple[str, ...], str] = {
    ("name",): "Written by `linearno init`. Edit it, then run:  linearno train THIS FILE",
    ("root", "files"): "The folder, relative to this file, and the pattern of its case files: {cases}.",
    ("frames",): "Times of each simulation: last, or all, as cases with the parameter time.",
    (
        "parameters",
    ): "Table of the parameters of the cases (.csv, .xlsx, .json), relative to this file; null: found in the "
    "folder.",
    ("location",): "Location of the targets: points or cells of the mesh.",
    ("coords",): "The axes along which the meshes have an extent.",
    ("targets",): "Fields to predict. All cases hold: {fields}.",
    ("surface_targets",): "Targets that are defined on the surface only, such as a wall shear stress. "
    "Elsewhere they are neither learned nor scored.",
    (
        "inputs",
    ): "Fields that are inputs: what is known before a simulation (a material, a load), not what the "
    "solver computes. The coordinates are always inputs.",
    (
        "globals",
    ): "Numbers of a whole case (a speed, an angle), from the field data of its file, from a field "
    "that is constant in each case, or from cases.csv in the folder. Found: {numbers}.",
    (
        "quantities",
    ): "Numbers computed from the targets, scored after training: {{lift: {{force: p, patch: walls, "
    "direction: [0, 1]}}, outlet: {{average: p, patch: outlet}}, tip: {{probe: p, point: [1, 0]}}}}.",
    (
        "expressions",
    ): "Numbers of a case computed from its OpenFOAM dictionaries or other numbers; name them in globals. "
    'Example: {{speed: norm(foam("0/U", "internalField"))}}.',
    ("components",): "Vectors and tensors: the components to use, by letter (x, y, z) or number (0, 1, …).",
    (
        "surface",
    ): "The surface. own: the boundary of the mesh; beside: the .stl file of the same name; patches of the "
    "boundary, separated by commas{patches}; the name of a field that is not 0 at its points{masks}; "
    "null: none.",
    ("derived",): "Inputs derived from the surface: distance (closed surfaces only), unsigned_distance, "
    "log_distance, normals and curvature (at the nearest point of the surface); and from positions: "
    "local_coords, which resolve a small body in a large domain, and fourier, sines and cosines of them.",
    ("position",): "Center and length scale of the points, for log_distance, local_coords and fourier.",
    ("units",): "Units of fields and coordinates. A file with another unit for a field is an error.",
    (
        "test",
        "train",
        "seed",
    ): "The split. A fraction (0.2) or a number of cases (10) is drawn at random with the "
    'seed; a list of patterns (["wing_*", "*_fine"]) selects cases by file name. Test cases are never used '
    "in training; a fraction for train refers to the other cases, 1.0 means all of them.",
    (
        "tolerate",
    ): "Faults of a mesh that are not errors: degenerate (cells without volume), duplicates (points "
    "with the same coordinates).",
    ("skip_bad",): "true: skip unusable cases, and list them.",
    ("cases",): "The simulations that are used. `linearno init --update THIS FILE` adds new ones and removes "
    "those that have vanished; []: all in the folder.",
}


def dataset_text(config: CasesConfig, summary: FolderSummary) -> str:
    """YAML text of `config`, with comments about the summarised folder."""
    points, local = summary.points, [f for f in summary.fields if f.location == config.location]
    count = f"{points[0]:,}" if points[0] == points[-1] else f"{points[0]:,} to {points[-1]:,}"
    masks = ", ".join(field.name for field in local if field.is_mask and field.location == "points")
    facts = {
        "cases": f"{len(summary.files)} of {count} points",
        "fields": _listing(local, len(summary.files)),
        "numbers": _listing((f for f in summary.fields if f.constant and f.varies), len(summary.files)),
        "masks": f" ({masks})" if masks else "",
        "patches": f" ({', '.join(summary.patches)})" if summary.patches else "",
    }
    values = config.model_dump(mode="json")
    sections = []
    for names, comment in COMMENTS.items():
        text = textwrap.wrap(
            comment.format(**facts),
            WIDTH,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
        )
        sections.append("\n".join([*text, *(f"{name}: {_flow(values[name])}" for name in names), ""]))
    return "\n".join(sections)


def _flow(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def _listing(fields: Iterable[FieldSummary], cases: int) -> str:
    return ", ".join(dict.fromkeys(_described(field) for field in fields if field.cases == cases)) or "none"


def _described(field: FieldSummary) -> str:
    facts = [*sorted(field.units)[:1], *([f"{field.components} numbers"] if field.components > 1 else [])]
    return f"{field.name} ({', '.join(facts)})" if facts else field.name
