"""A bundle is checked before anything is allocated: what does not fit is one line."""

import json
import resource
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from linearno import load
from linearno.core.errors import UserError


@pytest.fixture
def copy(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "run")


def change_card(folder, *path, to):
    file = folder / "model.json"
    card = json.loads(file.read_text())
    here = card
    for name in path[:-1]:
        here = here[name]
    here[path[-1]] = to
    file.write_text(json.dumps(card))


def change_tensors(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def refusal(folder):
    with pytest.raises(UserError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1500
    return message


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (("model", "settings", "depth"), 200_000, "weights do not fit the model"),
        (("model", "settings", "width"), 10**9, "weights do not fit the model"),
        (("model", "settings", "width"), 10**30, "model."),
        (("model", "settings", "slices"), 10**9, "weights do not fit the model"),
        (("model", "settings", "heads"), 0, "model.heads: input should be greater than 0"),
        (("model", "settings", "depth"), "deep", "model.depth: input should be a valid integer"),
        (("model", "settings", "widht"), 3, "model.widht: no such field; did you mean 'width'"),
        (("model", "settings", "grid"), [10**6, 10**6], "model."),
        (("model", "settings"), None, "model.settings: input should be a valid dictionary"),
        (("model", "coords"), 10**12, "model.coords is 1000000000000, the fields are 2"),
        (("model", "outputs"), "one", "model.outputs is 'one', the fields are 1"),
        (("model", "name"), 3, "model.name: input should be a valid string"),
        (("model",), [], "model: input should be a valid dictionary"),
        (("spec",), {}, "spec.coords: field required"),
        (("spec", "outputs"), [f"u{i}" for i in range(10_000)], "model.outputs is 1, the fields are 10000"),
        (("task",), {"name": "guess"}, "unknown task 'guess'"),
        (("precision",), "fp64", "precision: input should be 'fp32', 'tf32' or 'bf16'"),
        (("seed",), -1, "seed: input should be greater than or equal to 0"),
        (("recipe",), None, "recipe: input should be a valid string"),
        (("format",), "x" * 10**6, "this version reads 1"),
    ],
)
def test_a_card_that_does_not_fit_the_weights_is_refused(copy, path, to, message):
    change_card(copy, *path, to=to)
    assert message in refusal(copy)


def test_a_missing_key_is_named(copy):
    for name in ("recipe", "model", "spec"):
        card = json.loads((copy / "model.json").read_text())
        del card[name]
        broken = shutil.copytree(copy, copy.with_name(f"without_{name}"))
        (broken / "model.json").write_text(json.dumps(card))
        assert f"{name}: field required" in refusal(broken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t["model.head.weight"].fill_(torch.nan),
            "model.head.weight holds NaN or infinite numbers",
        ),
        (
            lambda t: t["scaler.outputs.std"].zero_(),
            "scaler.outputs.std holds deviations that are not positive",
        ),
        (
            lambda t: t["scaler.inputs.std"].fill_(-1),
            "scaler.inputs.std holds deviations that are not positive",
        ),
        (lambda t: t["scaler.inputs.mean"].fill_(torch.inf), "scaler.inputs.mean holds NaN or infinite"),
        (
            lambda t: t.update({"model.head.weight": t["model.head.weight"].to(torch.int32)}),
            "head.weight is torch.int32",
        ),
        (lambda t: t.pop("model.head.weight"), "weights do not fit the model"),
        (lambda t: t.update({"model.more": torch.zeros(3)}), "weights do not fit the model"),
        (lambda t: t.pop("scaler.inputs.mean"), "scaling does not fit"),
        (lambda t: t.update(coords=torch.zeros(7, 2)), "coords are (7, 2), which does not fit model.json"),
        (lambda t: t.update(coords=torch.zeros(81, 3)), "coords are (81, 3), which does not fit model.json"),
    ],
)
def test_numbers_that_no_training_gives_are_refused(copy, change, message):
    change_tensors(copy, change)
    assert message in refusal(copy)


def test_weights_in_half_precision_load(copy):
    before = load(copy).predict(torch.ones(1, 81, 1))
    change_tensors(
        copy, lambda t: t.update({n: p.bfloat16() for n, p in t.items() if n.startswith("model.")})
    )
    torch.testing.assert_close(load(copy).predict(torch.ones(1, 81, 1)), before, rtol=0.05, atol=0.01)


def test_a_hostile_card_costs_no_memory_and_no_time(copy):
    """In a process that may have no more than a little above what imports take."""
    change_card(copy, "model", "settings", to={"width": 2**20, "depth": 10**6, "heads": 1, "slices": 2**30})
    code = (
        "import resource, sys, torch, linearno; linearno.load; from linearno.inference.bundle import load;"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 60));"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: load(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    ended = subprocess.run([sys.executable, "-c", code, copy], capture_output=True, text=True, timeout=120)
    name, grown = ended.stdout.split()
    assert name == "UserError"
    assert int(grown) * (1 if sys.platform == "darwin" else 1024) < 2**28
    assert resource.RLIMIT_CPU is not None


def test_loading_leaves_the_random_state_alone(copy):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load(copy)
    assert torch.equal(torch.rand(3), expected)


def test_a_bundle_of_the_first_format_without_newer_keys_loads(copy):
    """Runs of earlier versions do not say where their model is defined."""
    file = copy / "model.json"
    card = json.loads(file.read_text())
    del card["model"]["defined_in"]
    del card["spec"]["aux"]
    file.write_text(json.dumps(card))
    assert load(copy).predict(torch.ones(1, 81, 1)).shape == (1, 81, 1)


def test_deep_or_endless_json_is_one_line(copy):
    (copy / "model.json").write_text("[" * 100_000)
    assert "is not valid JSON" in refusal(copy)
    (copy / "model.json").write_text("9" * 10_000)
    assert "is not valid JSON" in refusal(copy)
    with (copy / "model.json").open("wb") as file:
        file.truncate(2**30)
    assert "is larger than 64 MiB" in refusal(copy)
