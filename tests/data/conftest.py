from pathlib import Path

import pytest

from linearno.data import body_fitted as curved
from linearno.data import elasticity
from linearno.data.darcy import generate_darcy
from linearno.data.generation import generate
from tests.data.curved_sets import AIRFOILS, PIPES


@pytest.fixture(autouse=True)
def small_published_files(monkeypatch):
    """Of seven airfoils and pipes and six bodies: those of the tests are whole."""
    monkeypatch.setattr(curved, "WHOLE", {"airfoil": (7, 45, 11), "pipe": (7, 9, 9)})
    monkeypatch.setattr(elasticity, "SAMPLES", 6)


@pytest.fixture(scope="module", autouse=True)
def samples_made_here_are_those_of_workers(one_thread):
    """To the bit."""


@pytest.fixture
def serial(monkeypatch):
    """Samples made in this process: what is tested is not the workers, whose start takes seconds."""
    monkeypatch.setattr(generate, "process_map", lambda work, jobs, workers: (work(job) for job in jobs))


@pytest.fixture
def made(serial, tmp_path) -> Path:
    """A folder with a finished set: 4 train and 2 test samples at 11×11."""
    root = tmp_path / "darcy"
    sizes = {"train": 4, "test": 2}
    generate_darcy(root, sizes=sizes, resolution=11, seed=0, workers=1, tick=lambda n: None)
    return root


@pytest.fixture(scope="session")
def finished_airfoil(tmp_path_factory) -> Path:
    return AIRFOILS.make(tmp_path_factory.mktemp("airfoil"))


@pytest.fixture(scope="session")
def finished_pipe(tmp_path_factory) -> Path:
    return PIPES.make(tmp_path_factory.mktemp("pipe"))
