"""A small set of made-up flows, as arrays and as files in the layout of AirfRANS."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from linearno.data import DATASETS, airfrans_generation, airfrans_layout
from linearno.data.airfrans import AirfransConfig
from linearno.data.generation import generate
from tests.data.airfoil_flows import made_up_flows

SIZES, RESOLUTION, NODES = {"train": 4, "test": 3}, 16, 700


def make_set(root: Path, sizes: dict[str, int] = SIZES, nodes: int = NODES, *, files: bool = True) -> Path:
    """4 + 3 airfoils as arrays and, with about `nodes` nodes, as files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "process_map", lambda work, jobs, workers: (work(job) for job in jobs))
        patch.setattr(airfrans_generation, "airfoil_flows", made_up_flows)
        patch.setattr(airfrans_generation, "NODES", nodes)
        settings = {"sizes": sizes, "resolution": RESOLUTION, "seed": 0, "workers": 1, "tick": lambda n: None}
        DATASETS["airfrans"].generate(root, **settings)
        if files:
            assert DATASETS["airfrans"].export(root, root, lambda count: None) == sum(sizes.values())
    return root


def config(root: Path, **settings: object) -> AirfransConfig:
    return AirfransConfig.make({"root": root, **SIZES, "holdout": 0, "nodes": NODES, **settings})


def dataset_only(root: Path, to: Path) -> Path:
    """A copy of the files without the arrays, as if downloaded."""
    shutil.copytree(root / "Dataset", to / "Dataset")
    (to / "Dataset" / "linearno.json").unlink()
    return to


def rewrite(path: Path, change) -> None:
    """Change a VTU or VTP file by `change(mesh)`."""
    import pyvista

    mesh = pyvista.read(path)
    airfrans_layout.write_grid(path, change(mesh) or mesh)


def array(root: Path, split: str, field: str) -> np.ndarray:
    return np.load(root / f"{split}_{field}.npy")
