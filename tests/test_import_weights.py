"""Published weights become a run folder, and files that are something else are named."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from linearno import from_published, load
from linearno.data import DATASETS, Scaler
from linearno.initialization import open_splits
from linearno.recipes import RECIPES
from linearno.run_folder import open_run
from tests.commands import linearno, refused

FOLDER = Path(__file__).parent / "fixtures" / "published"
SMALL = ["model.width=32", "model.depth=2", "model.heads=4", "model.slices=8", "model.mlp_ratio=2"]


def published(name: str) -> dict[str, torch.Tensor]:
    with np.load(FOLDER / f"{name}.npz") as file:
        weights = {key: file[key] for key in file.files if key.startswith("sd/")}
    return {key.removeprefix("sd/"): torch.from_numpy(array) for key, array in weights.items()}


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A small published LinearNO for Darcy flow."""
    path = tmp_path_factory.mktemp("weights") / "darcy.pt"
    torch.save(published("linearno_conv_temp"), path)
    return path


@pytest.fixture(scope="module")
def imported(weights, darcy_folder, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "imported"
    changes = sets(*SMALL, "data.train=24", "data.test=6", "data.stride=4")
    code, output = linearno(
        "import", weights, "--recipe", "darcy/linearno", "--data", darcy_folder, "-o", run, *changes
    )
    assert code == 0, output
    assert "darcy/linearno with darcy.pt" in output
    assert "remark" not in output
    return run


def test_an_imported_run_answers_as_the_published_model_between_scaled_fields(imported, weights):
    bundle, splits = load(imported), open_splits(open_run(imported).data)
    scaler = Scaler.fit(splits.train.spec, splits.train.everything())
    test = splits.test.everything()
    with torch.no_grad():
        model = from_published(weights, heads=4, grid=(9, 9), coords=2)
        scaled = model(test.coords, scaler.inputs.encode(test.inputs))
    torch.testing.assert_close(bundle.predict(test.inputs), scaler.outputs.decode(scaled))


def test_an_imported_run_is_scored_and_reported_as_any_other(imported, tmp_path):
    code, output = linearno("evaluate", imported, "--device", "cpu")
    assert code == 0, output
    assert json.loads((imported / "metrics.json").read_text())["samples"] == 6
    code, output = linearno("report", imported, "-o", tmp_path / "page.html")
    assert code == 0, output
    assert "darcy/linearno with darcy.pt" in (tmp_path / "page.html").read_text()


def test_a_run_is_not_imported_over_another_nor_trained_over(imported, weights):
    again = refused("import", weights, "--recipe", "darcy/linearno", "-o", imported)
    assert "already contains a run" in again
    assert "recipe was 'darcy/linearno with darcy.pt'" in refused(
        "train", "darcy/linearno", "--out", imported, "--device", "cpu"
    )


def test_without_data_scaled_fields_are_named_and_not_scored(weights, darcy_folder, tmp_path):
    run = tmp_path / "run"
    code, output = linearno(
        "import", weights, "--recipe", "darcy/linearno", "-o", run, *sets(*SMALL, "data.stride=60")
    )
    assert code == 0, output
    assert "note: coeff, sol are in standard deviations from the mean" in output
    bundle = load(run)
    assert bundle.spec.unit("sol") == "standard deviations from the mean"
    assert bundle.predict(torch.randn(2, 64, 1)).shape == (2, 64, 1)  # 421 points a side, every 60th
    changes = f"data:\n  name: darcy\n  root: {darcy_folder}\n  train: 24\n  test: 6\n  stride: 4\n"
    config = (run / "config.yaml").read_text()
    data, rest = config.index("data:"), config.index("model:")
    (run / "config.yaml").write_text(config[:data] + changes + config[rest:])
    assert "import it with --data" in refused("evaluate", run, "--device", "cpu")


def test_where_nothing_is_scaled_no_data_are_needed(tmp_path):
    torch.save(published("linearno_cross_completer"), tmp_path / "u.pt")
    changes = sets("model.width=32", "model.depth=2", "model.heads=4", "model.slices=32")
    run = tmp_path / "run"
    code, output = linearno(
        "import", tmp_path / "u.pt", "--recipe", "burgers20/linearno", "-o", run, *changes
    )
    assert code == 0, output
    assert "remark" not in output
    answer = load(run).predict(torch.randn(1, 5, 1), torch.rand(5, 2))
    assert answer.shape == (1, 64 * 128, 1)


@pytest.mark.parametrize("recipe", ["airfoil/linearno", "pipe/linearno", "plasticity/transolver"])
def test_the_layout_of_a_benchmark_is_known_without_its_files(recipe):
    config = RECIPES[recipe]()
    layout = DATASETS[config.data.name].layout(config.data)
    assert (
        layout.spec.points == {"airfoil": 221 * 51, "pipe": 129**2, "plasticity": 101 * 31}[config.data.name]
    )


class Evil:
    """A pickle that would make a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def spoil(kind: str, good: Path, path: Path) -> None:
    content = good.read_bytes()
    if kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "text":
        path.write_text("epoch,loss\n1,0.5\n")
    elif kind == "list":
        torch.save([1, 2, 3], path)
    elif kind == "nan":
        torch.save(published("linearno_conv_temp") | {"placeholder": torch.full((32,), torch.nan)}, path)
    elif kind == "partial":
        torch.save({k: v for k, v in published("linearno_conv_temp").items() if "linear_post" not in k}, path)
    elif kind == "module":
        torch.save(torch.nn.Linear(2, 2), path)
    elif kind == "other":
        torch.save({"layer.weight": torch.zeros(2, 2)}, path)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("truncated", "is truncated or no file that torch.save wrote"),
        ("text", "is truncated or no file that torch.save wrote"),
        ("list", "holds no state dict"),
        ("nan", "placeholder contains NaN or infinite numbers"),
        ("partial", "lack 'preprocess.linear_post.bias'"),
        ("module", "asks for 'torch.nn.modules.linear.Linear', which is no part of plain weights"),
        ("other", "not weights of a published model (found layer.weight …)"),
        ("missing", "does not exist"),
    ],
)
def test_files_that_are_no_published_weights_are_named(kind, complaint, weights, tmp_path):
    spoil(kind, weights, tmp_path / "bad.pt")
    said = refused(
        "import", tmp_path / "bad.pt", "--recipe", "darcy/linearno", "-o", tmp_path / "r", *sets(*SMALL)
    )
    assert complaint in said
    assert "bad.pt" in said
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_never_run(zipped, tmp_path):
    mark = tmp_path / "was-here"
    if zipped:
        torch.save({"preprocess.linear_pre.0.weight": Evil(mark)}, tmp_path / "evil.pt")
    else:
        (tmp_path / "evil.pt").write_bytes(pickle.dumps({"weights": Evil(mark)}, protocol=2))
    said = refused("import", tmp_path / "evil.pt", "--recipe", "darcy/linearno", "-o", tmp_path / "run")
    assert "which is no part of plain weights, and was not opened" in said
    assert not mark.exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("recipe", "changes", "complaint"),
    [
        (
            "darcy/transolver",
            SMALL,
            "name is 'linearno' in these weights and 'transolver' in darcy/transolver",
        ),
        ("burgers20/linearno", SMALL, "name is 'linearno' in these weights and 'cross-linearno' in"),
        ("darcy/linearno", [], "width is 32 in these weights and 128 in darcy/linearno"),
        ("darcy/linearno", [*SMALL, "model.slices=9"], "slices is 8 in these weights and 9 in"),
        ("elasticity/linearno", SMALL, "stem is 'conv' in these weights and 'linear' in elasticity/linearno"),
        ("pipe/linearno", SMALL, "inputs is 1 in these weights and 0 in pipe/linearno"),
    ],
)
def test_weights_of_another_model_are_refused_by_the_first_mismatch(
    recipe, changes, complaint, weights, tmp_path
):
    said = refused("import", weights, "--recipe", recipe, "-o", tmp_path / "run", *sets(*changes))
    assert complaint in said
    assert not (tmp_path / "run").exists()
