"""The bundles in weights/: their hashes, sizes, and errors on new samples."""

import json
import re
from pathlib import Path

import pytest

import linearno as package
from benchmarks.weights import MAX_BYTES
from linearno.data import DATASETS
from tests.commands import linearno

WEIGHTS = Path("weights")
MANIFEST = json.loads((WEIGHTS / "manifest.json").read_text())
CHEAP = ("elasticity", "darcy", "pipe")  # benchmarks of which a CPU generates a few samples in seconds
SAMPLES = 6


def test_the_manifest_lists_every_bundle():
    assert set(MANIFEST) == {path.parent.name for path in WEIGHTS.glob("*/model.json")}


@pytest.mark.parametrize("name", MANIFEST)
def test_a_bundle_loads_and_is_as_small_as_stated(name):
    entry = MANIFEST[name]
    files = [WEIGHTS / name / file for file in entry["sha256"]]
    assert sum(path.stat().st_size for path in files) == entry["bytes"] <= MAX_BYTES
    bundle = package.load(WEIGHTS / name)
    assert bundle.spec.outputs
    assert entry["recipe"].split("/")[0] in DATASETS
    if entry["changed"]:
        assert entry["note"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, e in MANIFEST.items() if e["recipe"].split("/")[0] in CHEAP])
def test_the_error_on_new_samples_is_the_stated_one_within_its_spread(name):
    code, output = linearno("evaluate", WEIGHTS / name, "--fresh", SAMPLES, "--device", "cpu")
    assert code == 0, output
    found = float(re.search(r"relative L2 +mean +([\d.e-]+)", output)[1])
    stated = MANIFEST[name]["error"]
    assert abs(found - stated["mean"]) < 4 * stated["std"] / SAMPLES**0.5, (found, stated)
