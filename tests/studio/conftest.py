"""Runs for the studio: untrained surrogates with configuration, and data where a test needs them."""

import numpy as np
import pytest
import torch

try:
    import pyvista  # noqa: F401
    import trame  # noqa: F401
    import trame_vtk  # noqa: F401
except ImportError:  # without the extra `studio` there is nothing to test here
    collect_ignore_glob = ["test_*.py"]

from linearno import LinearNO, Transolver
from linearno.core.config import write_yaml
from linearno.data import AirfoilConfig, Batch, DarcyConfig, Scaler
from linearno.data.airfoil import airfoil_layout
from linearno.data.darcy import darcy_layout, generate_darcy
from linearno.inference import Bundle
from linearno.meshes import CasesConfig
from linearno.models import MODELS
from linearno.run_config import RunConfig
from linearno.solvers.airfoil import airfoil_nodes
from linearno.training import TrainingConfig

SMALL = {"width": 8, "depth": 2, "heads": 2, "slices": 4}
COARSE = 45  # nodes along the airfoil: the coarsest grid
CLASSES = {"linearno": LinearNO, "transolver": Transolver}


def write_run(folder, data, spec, coords, *, model="linearno", **fields):
    """A run folder of an untrained surrogate on points (N, X), which its bundle holds if `shared`."""
    torch.manual_seed(0)
    shared = fields.pop("shared", False)
    count = {"coords": len(spec.coords), "inputs": len(spec.inputs), "outputs": len(spec.outputs)}
    points = coords.expand(4, -1, -1)
    inputs = 7 + 3 * torch.randn(4, len(coords), count["inputs"]) if spec.inputs else None
    scaler = Scaler.fit(spec, Batch(points, inputs, torch.randn(4, len(coords), count["outputs"])))
    module = CLASSES[model](**count, **SMALL).eval()
    Bundle(module, scaler, spec, coords if shared else None, "test", 0, **fields).save(folder)
    settings = MODELS[model].config.make({"name": model, **SMALL})
    config = RunConfig(recipe=f"test/{model}", data=data, model=settings, training=TrainingConfig(epochs=3))
    write_yaml(folder / "config.yaml", config)
    return folder


@pytest.fixture(scope="session")
def darcy_data(tmp_path_factory):
    """21×21 samples, of which runs read every second point."""
    root = tmp_path_factory.mktemp("darcy")
    generate_darcy(
        root, sizes={"train": 8, "test": 3}, resolution=21, seed=0, workers=1, tick=lambda count: None
    )
    return DarcyConfig(root=root, train=8, test=3, stride=2, source="generated")


@pytest.fixture(scope="session")
def darcy_folders(darcy_data, tmp_path_factory):
    """LinearNO and Transolver on the same data."""
    spec, coords, _ = darcy_layout(darcy_data, 21)
    return [
        write_run(tmp_path_factory.mktemp(name), darcy_data, spec, coords, model=name, shared=True)
        for name in CLASSES
    ]


def open_runs(folders, device):
    from linearno.studio.runs import open_runs

    return open_runs(folders, device)


@pytest.fixture
def darcy_runs(darcy_folders):
    return open_runs(darcy_folders, "cpu")


@pytest.fixture(scope="session")
def airfoil_folder(tmp_path_factory):
    """A run on the coarsest C-grid, without data."""
    folder = tmp_path_factory.mktemp("airfoil")
    config = AirfoilConfig(root=folder / "data")
    nodes = torch.from_numpy(airfoil_nodes(np.zeros(8), COARSE).reshape(-1, 2)).float()
    return write_run(folder, config, airfoil_layout(config, COARSE).spec, nodes)


@pytest.fixture
def airfoil_runs(airfoil_folder):
    return open_runs([airfoil_folder], "cpu")


@pytest.fixture(scope="session")
def cases_folder(tmp_path_factory):
    """A run on meshes in a plane with a number of the case, and three of its meshes."""
    from tests.meshes.mesh_examples import plane

    root, folder = tmp_path_factory.mktemp("cases"), tmp_path_factory.mktemp("cases-run")
    for n in (5, 6, 7):
        grid = plane(n, hole=n == 7)
        grid.field_data["speed"] = [float(n)]
        grid.save(root / f"case{n}.vtu")
    config = CasesConfig(root=root, targets=("p",), globals=("speed",), components={}, train=2, test=1)
    points = torch.rand(30, 2, generator=torch.Generator().manual_seed(0))
    return write_run(folder, config, config.mesh_fields.spec, points, mesh_fields=config.mesh_fields)


@pytest.fixture(scope="module")
def cases_runs(cases_folder):
    return open_runs([cases_folder], "cpu")
