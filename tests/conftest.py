"""A tiny Darcy set, made once by the real solver, and tiny runs on it."""

import os
import random
import signal
from pathlib import Path

# Tensors here are tiny: threads would wait for each other, not work. Set before torch starts, and inherited.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from jaxtyping import install_import_hook

try:
    import beartype
except ImportError:
    beartype = None

# Shapes and types of every call are checked here, but for the kernels: triton reads their source.
ROOT = Path(__file__).parents[1]
SOURCES = {ROOT / "src": "linearno", ROOT: "benchmarks"}
MODULES = [
    path.relative_to(root).with_suffix("")
    for root, name in SOURCES.items()
    for path in (root / name).rglob("*.py")
]
if beartype is not None:
    kernels = {"batched_inverse", "lattice_kernel"}
    checked = [path for path in MODULES if "triton" not in path.parts and path.stem not in kernels]
    install_import_hook([".".join(path.parts) for path in checked], "beartype.beartype")

if not torch.cuda.is_available():  # read when triton is imported: kernels then run on the CPU, in Python
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A console looks for the first when it is made, the library for the others.
FOREIGN = """CLICOLOR_FORCE COLUMNS FORCE_COLOR GITHUB_ACTIONS LINES NO_COLOR TERMINAL_WIDTH TTY_COMPATIBLE
TTY_INTERACTIVE
LINEARNO_BACKEND LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT RANK WORLD_SIZE"""
for name in FOREIGN.split():
    os.environ.pop(name, None)

# after the hook, which must see them come
from linearno.core.config import override  # noqa: E402
from linearno.core.device import set_matmul_precision  # noqa: E402
from linearno.data import DATASETS  # noqa: E402
from linearno.experiment import run  # noqa: E402
from linearno.recipes import RECIPES  # noqa: E402
from linearno.run_config import RunConfig  # noqa: E402


def pytest_report_header() -> str | None:
    return None if beartype else "beartype is not installed: shapes and types of calls are not checked"


TINY = [
    "data.train=24",
    "data.test=6",
    "data.stride=4",
    "model.width=16",
    "model.depth=2",
    "model.heads=2",
    "model.slices=6",
    "training.epochs=3",
]


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files and tests in random order")


def pytest_collection_modifyitems(config, items):
    if (seed := config.getoption("--shuffle")) is not None:
        draw = random.Random(seed).random
        file = {path: draw() for path in dict.fromkeys(item.path for item in items)}
        items.sort(key=lambda item: (file[item.path], draw()))


@pytest.fixture(autouse=True)
def exact_products():
    """PyTorch's convolutions on CUDA are tf32 unless told otherwise, and a run before may have told."""
    set_matmul_precision("fp32")


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Tests draw the same numbers in any order and by themselves."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread():
    """As in the processes that make samples: the last bits of an FFT depend on the threads of a batch."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def darcy_folder(tmp_path_factory) -> Path:
    """24 + 6 samples at 33×33, as `linearno data generate darcy` writes them."""
    root = tmp_path_factory.mktemp("darcy")
    DATASETS["darcy"].generate(
        root, sizes={"train": 24, "test": 6}, resolution=33, seed=0, workers=1, tick=lambda n: None
    )
    return root


@pytest.fixture(scope="session")
def tiny_config(darcy_folder):
    """A recipe shrunk until it trains in a second."""

    def make(recipe: str = "darcy/linearno", *changes: str) -> RunConfig:
        return override(RECIPES[recipe](), [*TINY, f"data.root={darcy_folder}", *changes])

    return make


@pytest.fixture(scope="session")
def tiny_run(tiny_config, tmp_path_factory) -> Path:
    """A finished run folder; tests read it and leave it as it is."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run(tiny_config(), folder, torch.device("cpu"))
    return folder


SMALL = ["model.width=16", "model.depth=1", "model.heads=2", "model.slices=6", "training.epochs=2"]


def _made(name: str, root: Path, sizes: dict[str, int], resolution: int) -> Path:
    DATASETS[name].generate(root, sizes=sizes, resolution=resolution, seed=0, workers=1, tick=lambda n: None)
    return root


@pytest.fixture(scope="session")
def marched(tmp_path_factory) -> Path:
    """A finished run on 6 + 3 flows of 8×8 points."""
    data = _made("ns", tmp_path_factory.mktemp("ns"), {"train": 6, "test": 3}, 16)
    changes = [*SMALL, f"data.root={data}", "data.train=6", "data.test=3"]
    folder = tmp_path_factory.mktemp("runs") / "ns"
    run(override(RECIPES["ns/linearno"](), changes), folder, torch.device("cpu"))
    return folder


@pytest.fixture(scope="session")
def completed(tmp_path_factory) -> Path:
    """A finished run on 6 + 3 trajectories of 8×16 points, a fifth of them observed."""
    data = _made("burgers", tmp_path_factory.mktemp("burgers"), {"train": 6, "test": 3, "val": 1}, 16)
    changes = [*SMALL, f"data.root={data}", "data.train=6", "data.test=3", "data.val=1"]
    folder = tmp_path_factory.mktemp("runs") / "burgers"
    run(override(RECIPES["burgers20/linearno"](), changes), folder, torch.device("cpu"))
    return folder


@pytest.fixture(scope="session")
def finer(tmp_path_factory) -> Path:
    """Burgers again, at twice as many points and times."""
    return _made("burgers", tmp_path_factory.mktemp("finer"), {"train": 6, "test": 3, "val": 1}, 32)
