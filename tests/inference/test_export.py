"""An exported file predicts like the run that it came from, without linearno."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.export.passes import move_to_device_pass

from linearno import CrossLinearNO, LinearNO, Transolver, load
from linearno.data import Batch, FieldSpec, Scaler
from linearno.inference.bundle import Bundle
from linearno.inference.export import export_run
from linearno.inference.export.io_signature import io_signature
from linearno.training import Rollout, Task, Timed
from tests.commands import linearno, refused

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.slow
SMALL = {"width": 16, "depth": 1, "heads": 2, "slices": 6}
ALL = ("coords", "inputs", "outputs")
SIZES = [(1, 1), (3, 29), (2, 30_001)]  # samples, points; the last are more than fit a block
DARCY = FieldSpec(
    coords=("x", "y"),
    inputs=("coeff",),
    outputs=("sol",),
    standardised=ALL,
    units={"sol": "Pa", "coeff": "m2"},
)
FRAMES = tuple(f"{name}{t}" for t in range(3) for name in ("ux", "uy"))


def bundle_of(model, spec: FieldSpec, task: Task | None = None, coords: torch.Tensor | None = None) -> Bundle:
    """A bundle with random weights, whose outputs vary between points, and the scaling of random data."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "temperature" not in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    task = task or Task()
    call_spec = task.spec(spec)

    def draw(names):
        values = torch.randn(4, 30, len(names), generator=generator)
        return 3 + values * (1 + torch.arange(len(names))) if names else None

    sample = Batch(draw(call_spec.coords), draw(call_spec.inputs), draw(call_spec.outputs))
    return Bundle(model, Scaler.fit(call_spec, sample), spec, coords, "test/small", 0, task=task)


def linear() -> Bundle:
    return bundle_of(LinearNO(coords=2, inputs=1, outputs=1, **SMALL | {"depth": 2}), DARCY)


def transolver() -> Bundle:
    """With distances to reference points in place of coordinates."""
    unified = {"ref": 3, "place": "coords"}
    return bundle_of(Transolver(coords=2, inputs=1, outputs=1, unified=unified, **SMALL), DARCY)


def exported(bundle: Bundle, folder: Path, format: str) -> tuple[Path, str]:
    """The file and the output of the command."""
    bundle.save(folder / "run")
    path = folder / {"onnx": "model.onnx", "torch": "model.pt2"}[format]
    code, output = linearno("export", folder / "run", "--format", format, "-o", path)
    assert code == 0, output
    return path, output


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> tuple[Path, str]:
    return exported(linear(), tmp_path_factory.mktemp("torch"), "torch")


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> tuple[Path, str]:
    return exported(transolver(), tmp_path_factory.mktemp("onnx"), "onnx")


def load_exported(path: Path):
    """The file as a function of tensors by name, by plain torch or onnxruntime."""
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
        return lambda **inputs: module(**inputs)
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]

    def predict(**inputs):
        outputs = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        return dict(zip(names, map(torch.from_numpy, outputs), strict=True))

    return predict


@pytest.mark.parametrize(("make", "file"), [(linear, "program"), (transolver, "graph")])
def test_file_predicts_in_physical_units_for_any_number_of_points(make, file, request):
    bundle, (path, output) = make(), request.getfixturevalue(file)
    assert "inputs   coords (batch, points, 2), coeff (batch, points)" in output
    assert "checked at three sizes" in output
    predict = load_exported(path)
    for samples, points in SIZES:
        coords, coeff = 5 * torch.rand(samples, points, 2), 3 + torch.randn(samples, points, 1)
        found = predict(coeff=coeff[..., 0], coords=coords)["sol"]
        expected = bundle.predict(coeff, coords, batch=samples)[..., 0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert points == 1 or expected.std() > 0.01


def test_field_reconstruction_takes_any_number_of_observations_and_query_points(tmp_path, monkeypatch):
    spec = FieldSpec(coords=("x", "t"), inputs=("u observed",), outputs=("u",), standardised=ALL)
    bundle = bundle_of(CrossLinearNO(coords=2, inputs=1, outputs=1, **SMALL), spec)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        path, output = exported(bundle, tmp_path, "onnx")
    assert "not checked: onnxruntime is not installed" in output
    predict = load_exported(path)
    for samples, points in SIZES:
        observations = 1 + points // 7
        coords, queries = torch.rand(samples, observations, 2), torch.rand(samples, points, 2)
        u = torch.randn(samples, observations, 1)
        found = predict(coords=coords, u_observed=u[..., 0], points=queries)["u"]
        expected = bundle.encode(coords, u).query(queries)[..., 0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_time_conditioned_model_on_a_fixed_grid(tmp_path):
    spec = FieldSpec(
        coords=("s", "r"), inputs=("die",), outputs=FRAMES, grid=(7, 5), standardised=("inputs",)
    )
    model = LinearNO(coords=2, inputs=1, outputs=2, stem="conv", grid=(7, 5), time=True, **SMALL)
    bundle = bundle_of(model, spec, Timed(channels=2), torch.rand(35, 2))
    path, output = exported(bundle, tmp_path, "onnx")
    assert "fixed to its grid of 7×5" in output
    assert "inputs   die (batch, 35), time (batch, 1)" in output
    assert "outputs  ux (batch, 35), uy (batch, 35)" in output
    predict, die = load_exported(path), 3 + torch.randn(3, 35, 1)
    frames = bundle.predict(die)
    for frame, time in enumerate((0.0, 0.5, 1.0)):
        for samples in (1, 3):
            found = predict(die=die[:samples, :, 0], time=torch.full((samples, 1), time))
            pair = torch.stack([found["ux"], found["uy"]], dim=-1)
            expected = frames[:samples, :, 2 * frame : 2 * frame + 2]
            torch.testing.assert_close(pair, expected, rtol=1e-4, atol=1e-4)


def test_rollout_is_exported_as_one_step(tmp_path):
    spec = FieldSpec(coords=("x", "y"), inputs=("w1", "w2"), outputs=("w3", "w4", "w5"))
    bundle = bundle_of(LinearNO(coords=2, inputs=2, outputs=1, **SMALL), spec, Rollout())
    path, output = exported(bundle, tmp_path, "torch")
    assert "one time step" in output
    predict, coords, frames = load_exported(path), torch.rand(1, 11, 2), torch.randn(1, 11, 2)
    known = frames
    for _ in range(3):
        found = predict(coords=coords, w1=known[..., 0], w2=known[..., 1])["w3"]
        known = torch.stack([known[..., 1], found], dim=-1)
    torch.testing.assert_close(known[..., 1], bundle.predict(frames, coords, steps=3)[..., 2])


@pytest.mark.parametrize("file", ["program", "graph"])
def test_printed_usage_runs_without_linearno(file, request):
    lines = request.getfixturevalue(file)[1].rstrip().splitlines()[-3:]
    assert lines[0].startswith("import ")
    script = ["import sys; sys.modules['linearno'] = None", *lines, "print(sol.shape)"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([sys.executable, "-c", "\n".join(script)], capture_output=True, text=True, env=env)
    assert ran.returncode == 0, ran.stderr
    assert "1, 100" in ran.stdout


def test_file_carries_its_card_and_no_local_paths(program, graph):
    files = {"linearno.json": ""}
    nodes = torch.export.load(program[0], extra_files=files).graph.nodes
    assert not [node for node in nodes if "linearno" in str(node.target)]
    metadata = {prop.key: prop.value for prop in onnx.load(graph[0]).metadata_props}
    for card in (json.loads(files["linearno.json"]), json.loads(metadata["linearno"])):
        assert card["recipe"] == "test/small"
        assert FieldSpec.make(card["spec"]) == DARCY
        assert card["exported"]["versions"]["linearno"]
        assert {"commit", "versions", "model", "task", "seed"} <= card.keys()
        units = {tensor["name"]: tensor["units"] for tensor in card["inputs"] + card["outputs"]}
        assert units == {"coords": ["dimensionless"] * 2, "coeff": ["m2"], "sol": ["Pa"]}
        assert card["outputs"][0]["axes"] == ["batch", "points"]
    for path, _ in (program, graph):
        assert str(Path(__file__).parents[2]).encode() not in path.read_bytes()


def test_torch_program_moves_to_another_device(program):
    moved = move_to_device_pass(torch.export.load(program[0]), "meta").module()
    inputs = {"coords": torch.rand(1, 5, 2, device="meta"), "coeff": torch.rand(1, 5, device="meta")}
    assert moved(**inputs)["sol"].device.type == "meta"


def test_file_that_differs_from_the_model_is_not_written(tmp_path):
    bundle_of(LinearNO(coords=2, inputs=1, outputs=1, **SMALL), DARCY).save(tmp_path / "run")
    message = refused(
        "export", tmp_path / "run", "--format", "onnx", "-o", tmp_path / "m.onnx", "--tolerance", "1e-12"
    )
    assert "was not written: its outputs differ from the model's by" in message
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_errors_before_anything_is_written(tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert "does not exist" in refused("export", run, "--format", "torch")
    bundle_of(LinearNO(coords=2, inputs=1, outputs=1, **SMALL), DARCY).save(run)
    assert "ends in .pt2" in refused("export", run, "--format", "torch", "-o", tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    message = refused("export", run, "--format", "onnx")
    assert "onnxscript is not installed; run: pip install 'linearno[export]'" in message
    assert sorted(path.name for path in run.iterdir()) == ["model.json", "model.safetensors"]
    assert linearno("export", run, "--format", "keras")[0] == 2


def test_exported_model_takes_raw_positions_from_its_coordinates(tmp_path):
    unified = {"ref": 2, "place": "positions", "box": [[0, 1], [0, 1]]}
    bundle_of(LinearNO(coords=2, inputs=1, outputs=1, unified=unified, **SMALL), DARCY).save(tmp_path)
    exported = export_run(tmp_path, tmp_path / "model.pt2", "torch")
    assert exported.difference == pytest.approx(0, abs=1e-6)


def test_tensor_names_are_unique_python_identifiers():
    spec = FieldSpec(coords=("x",), inputs=("time", "2 k", "lambda"), outputs=("a b", "a-b", "ü"))
    inputs, outputs = io_signature(bundle_of(LinearNO(coords=1, inputs=3, outputs=3, **SMALL), spec))
    assert [tensor.name for tensor in inputs] == ["coords", "time_", "_2_k", "lambda_"]
    assert [tensor.name for tensor in outputs] == ["a_b", "a_b_", "ü"]


def test_example_of_the_docs_page_loads_a_run_and_predicts(tiny_run):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "export.md").read_text()
    block = page[page.index("import torch, linearno") :].partition("```")[0]
    assert len([line for line in block.splitlines() if line]) == 3
    namespace: dict = {}
    exec(block.replace("runs/darcy-linearno", str(tiny_run)).replace("85 * 85", "9 * 9"), namespace)
    assert namespace["sol"].shape == (1, 81, 1)
    coeff = torch.ones(1, 81, 1)
    assert torch.equal(namespace["surrogate"].predict(coeff), load(tiny_run).predict(coeff))
