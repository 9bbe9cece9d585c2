"""A `dataset.yaml` as text: every setting, with a comment that says what it is for."""

from collections.abc import Iterable
from typing import Any

import yaml

from linearno.meshes.config import CasesConfig
from linearno.meshes.infer_schema import SURFACE_WORDS, Field, Looked

WIDTH = 100


def dataset_text(config: CasesConfig, looked: Looked) -> str:
    """`CasesConfig` reads it back as `config`."""
    cases, points = len(looked.files), looked.points
    fields = [each for each in looked.fields if each.location == config.location]
    numbers = [each for each in looked.fields if each.constant and each.varies]
    marks = [each.name for each in fields if each.marks and each.location == "points"]
    values = config.model_dump(mode="json")
    parts = [
        _words("Written by `linearno init`. Change what you like, then:  linearno train THIS FILE"),
        _lines(values, "name"),
        _words(
            f"The folder, seen from this file, and which of its files are cases: {cases} of {_range(points)}"
        ),
        _lines(values, "root", "files"),
        _words("Learn the fields at the points of a mesh, or those in its cells."),
        _lines(values, "location"),
        _words("The axes along which the meshes have an extent."),
        _lines(values, "coords"),
        _words(f"What is predicted. In all cases there are: {_list(fields, cases)}."),
        _lines(values, "targets"),
        _words(
            "Those of the targets that mean something on the surface alone, such as a wall shear stress. "
            "Elsewhere they are neither learned nor scored."
        ),
        _lines(values, "surface_targets"),
        _words(
            "Fields that the model is told: what is known before a simulation is run (a material, a load). "
            "What only the solver knows does not belong here. The coordinates are always given."
        ),
        _lines(values, "inputs"),
        _words(
            "Numbers of a whole case (a speed, an angle), from the field data of its file, from a field that "
            f"is constant in each case, or from cases.csv in the folder. Found: {_list(numbers, cases)}."
        ),
        _lines(values, "globals"),
        _words(
            "Vectors and tensors: which of their components count, by letter (x, y, z) or number (0, 1, …)."
        ),
        _lines(values, "components"),
        _words(_surface_words(marks)),
        _lines(values, "surface"),
        _words(
            "Inputs that are worked out from the surface: distance (of a closed one), unsigned_distance (of "
            "any), normals and curvature (those of the nearest point of it)."
        ),
        _lines(values, "derived"),
        _words("Units, of the coordinates too. A file that tells another one for a field is refused."),
        _lines(values, "units"),
        _words(
            "How to split. A fraction (0.2) or a number of cases (10) is drawn at random, the same for the "
            'same seed; a list of patterns (["wing_*", "*_fine"]) goes by file name. The test never takes '
            "part in training; train is a share of what it leaves, 1.0 all of it."
        ),
        _lines(values, "test", "train", "seed"),
        _words(
            "Faults of a mesh that do not matter here: degenerate (cells without volume), duplicates (points "
            "at the same place)."
        ),
        _lines(values, "tolerate"),
        _words("true: go on without cases that cannot be used, and say which."),
        _lines(values, "skip_bad"),
    ]
    return "\n".join(parts)


def _lines(values: dict[str, Any], *names: str) -> str:
    return "".join(f"{name}: {_flow(values[name])}\n" for name in names)


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def _words(text: str) -> str:
    lines: list[str] = []
    line = "#"
    for word in text.split(" "):
        if len(line) + len(word) >= WIDTH:
            lines, line = [*lines, line], "#"
        line += f" {word}"
    return "\n".join([*lines, line])


def _range(points: list[int]) -> str:
    return f"{points[0]:,} points." if points[0] == points[-1] else f"{points[0]:,} to {points[-1]:,} points."


def _list(fields: Iterable[Field], cases: int) -> str:
    names = (_named(each) for each in fields if each.cases == cases)
    return ", ".join(dict.fromkeys(names)) or "none"


def _named(each: Field) -> str:
    facts = [*sorted(each.units)[:1], *([f"{each.components} numbers"] if each.components > 1 else [])]
    return f"{each.name} ({', '.join(facts)})" if facts else each.name


def _surface_words(marks: list[str]) -> str:
    choices = [f"{name}: {words}" for name, words in SURFACE_WORDS.items()]
    choices.append(
        "the name of a field that is not 0 at the points of it" + (f" ({', '.join(marks)})" if marks else "")
    )
    return f"The surface. {'; '.join(choices)}; null: none."
