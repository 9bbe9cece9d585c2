from pathlib import Path

import pytest

from linearno.data import airfoil, elasticity, pipe
from linearno.data.darcy import generate_darcy
from linearno.data.generation import generate
from tests.data.curved_sets import AIRFOILS, PIPES


@pytest.fixture(autouse=True)
def small_published_files(monkeypatch):
    """The published files have seven airfoils and pipes and six bodies on small grids."""
    for files, sizes in (
        (airfoil.FILES, {"samples": 7, "22 n + 1": 45, "5 n + 1": 11}),
        (pipe.FILES, {"samples": 7, "n": 9}),
        (elasticity.FILES, {"samples": 6}),
    ):
        for axis, size in sizes.items():
            monkeypatch.setitem(files.published_sizes, axis, size)


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
