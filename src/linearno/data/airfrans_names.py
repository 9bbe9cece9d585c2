"""Names of the simulations of AirfRANS, which hold their parameters, and the splits made from them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from linearno.core.atomic_io import read_json
from linearno.core.errors import UserError, brief
from linearno.solvers.naca import DECIMALS, AirfoilCase

MANIFEST = "manifest.json"
ORIGIN = "linearno.json"  # card of the arrays of exported files, in the folder of their manifest
FOLDERS = ("", "Dataset", "airfrans/Dataset")  # of the manifest, relative to the data folder
PREFIX = "airFoil2D_SST"
SUFFIXES = ("_internal.vtu", "_aerofoil.vtp", "_freestream.vtp")

AirfransSplit = Literal["full", "scarce", "reynolds", "aoa"]
RULES = {  # limits of the training samples: Reynolds number, angle of attack in degrees
    "reynolds": ((3e6, 5e6), (-math.inf, math.inf)),
    "aoa": ((-math.inf, math.inf), (-2.5, 12.5)),
}
SCARCE_SHARE = 0.25  # of the training samples: 200 of 800

Manifest = Mapping[str, tuple[str, ...]]


def simulation_name(case: AirfoilCase) -> str:
    """`airFoil2D_SST_` with speed, angle and digits, rounded as those of AirfRANS."""
    values = (case.speed, case.angle, *case.digits)
    return "_".join([PREFIX, *(str(round(float(value), DECIMALS)) for value in values)])


def case_of(name: str) -> AirfoilCase:
    """Parameters of a simulation; an error if they are not in its name."""
    try:
        speed, angle, *digits = map(float, name.removeprefix(f"{PREFIX}_").split("_"))
    except ValueError:
        digits = []
    if not name.startswith(f"{PREFIX}_") or len(digits) not in (3, 4):
        raise UserError(
            f"{brief(name)} names no simulation; expected {PREFIX}_SPEED_ANGLE_DIGITS, three or four digits"
        )
    return AirfoilCase(tuple(digits), speed, angle)


def manifest_keys(split: AirfransSplit) -> tuple[str, str]:
    """Names of the lists of training and test samples; `scarce` has the test samples of `full`."""
    return f"{split}_train", "full_test" if split == "scarce" else f"{split}_test"


def make_manifest(train: Sequence[str], test: Sequence[str]) -> dict[str, list[str]]:
    """The seven lists of AirfRANS for a set with these names."""
    lists = {"full_train": list(train), "scarce_train": list(train[: round(SCARCE_SHARE * len(train))])}
    for split, limits in RULES.items():
        inside = [_within(case_of(name), limits) for name in (*train, *test)]
        chosen = list(zip((*train, *test), inside, strict=True))
        lists[f"{split}_train"] = [name for name, kept in chosen if kept]
        lists[f"{split}_test"] = [name for name, kept in chosen if not kept]
    return lists | {"full_test": list(test)}


def _within(case: AirfoilCase, limits: tuple[tuple[float, float], tuple[float, float]]) -> bool:
    values = (case.reynolds, case.angle)
    return all(low <= value <= high for value, (low, high) in zip(values, limits, strict=True))


def manifest_folder(root: Path) -> Path:
    """The folder of `manifest.json`: `root`, its subfolder `Dataset`, or the one named by the download."""
    return next((root / part for part in FOLDERS if (root / part / MANIFEST).exists()), root)


def read_manifest(folder: Path, *, how: str) -> Manifest:
    """Lists of names; an error if it is no manifest of AirfRANS."""
    path = folder / MANIFEST
    values = read_json(path, how=how)
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected an object with lists of names such as full_train; {how}")
    for key, names in values.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{path}: {brief(key)} is no list of names; {how}")
    return {key: tuple(names) for key, names in values.items()}


def names_of(manifest: Manifest, key: str, folder: Path, *, how: str) -> tuple[str, ...]:
    """A list of the manifest, whose names are checked."""
    if key not in manifest:
        known = ", ".join(manifest) or "nothing"
        raise UserError(f"{folder / MANIFEST} has no list {key!r}; it has {known}; {how}")
    for name in manifest[key]:
        if name != Path(name).name:
            raise UserError(f"{folder / MANIFEST}: {brief(name)} is no name of a folder; {how}")
        case_of(name)
    return manifest[key]


def require_files(folder: Path, names: Sequence[str], *, how: str) -> None:
    """Raise unless the mesh and the airfoil of each simulation are there."""
    for suffixes in (("",), SUFFIXES[:2]):
        paths = [[folder / name / (name + end if end else "") for end in suffixes] for name in names]
        missing = [each for paths_of_one in paths for each in paths_of_one if not each.exists()]
        if missing:
            count = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            what = "folder" if suffixes == ("",) else "file"
            raise UserError(
                f"{folder / MANIFEST} names simulations whose {what}s are missing: {missing[0]}{count}; {how}"
            )
