"""Thousands of damaged files: each is read, or refused with an error that names it."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.meshes.config import read_dataset
from linearno.meshes.reader import commands
from linearno.meshes.reader.commands import MeshRequest
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader_process import Reader
from tests.meshes.mesh_examples import ball, box

pyvista = pytest.importorskip("pyvista")

pytestmark = pytest.mark.slow

FILES = 1300
TEXTS = 800
TIME_LIMIT = 4.0  # seconds for a file


def seeds(folder):
    """A small file of every kind that is read."""
    grid, skin = box(3), ball(1.0, 6)
    skin.point_data["p"] = np.arange(skin.n_points, dtype=float)
    for name, mesh in (
        ("a.vtu", grid),
        ("a.vtk", grid),
        ("a.vtp", skin),
        ("a.stl", skin),
        ("skin.vtk", skin),
    ):
        mesh.save(folder / name)
        mesh.save(folder / f"text-{name}", binary=False)
    pyvista.ImageData(dimensions=(3, 4, 5)).save(folder / "a.vti")
    pyvista.ImageData(dimensions=(3, 4, 5)).cast_to_structured_grid().save(folder / "a.vts")
    arrays = {"points": np.asarray(grid.points), "p": np.asarray(grid["p"]), "speed": np.array(3.0)}
    np.savez(folder / "a.npz", **arrays)
    np.savez_compressed(folder / "small.npz", **arrays)
    with h5py.File(folder / "a.h5", "w") as file:
        for name, values in arrays.items():
            file[name] = values
        file.create_dataset("packed", data=arrays["p"], compression="gzip", chunks=(10,))
    np.savetxt(
        folder / "a.csv", np.c_[arrays["points"], arrays["p"]], delimiter=",", header="x,y,z,p", comments=""
    )
    return sorted(folder.iterdir())


def mutated(content, rng):
    """Cut short, with some bytes changed, with digits changed for others, or with a piece twice."""
    data, kind = bytearray(content), rng.integers(5)
    digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if kind == 0:
        del data[rng.integers(len(data)) :]
    elif kind == 1 and digits:
        for place in rng.choice(digits, rng.integers(1, 4)):
            data[place] = rng.integers(48, 58)
    elif kind == 2:
        start, stop = sorted(rng.integers(len(data), size=2))
        data[start:start] = data[start:stop]
    else:
        for place in rng.integers(len(data), size=rng.integers(1, 3 if kind == 3 else 30)):
            data[place] = rng.integers(256)
    return bytes(data)


def outcome(reader, path):
    """`read`, or `refused` with the name of the file; anything else is raised."""
    file = CaseFile(path.stem, path)
    request = MeshRequest(fields=["p", "q"], numbers=["speed"], tolerate=["degenerate", "duplicates"])
    try:
        if reader.call(commands.summarise, file).cell_dimension > 1:
            derived = ["unsigned_distance", "normals", "curvature"]
            request = replace(request, derived=derived, mark_surface=True)
        reader.call(commands.read, file, request)
    except UserError as error:
        return "refused" if str(path) in str(error) else "refused without a name"
    return "read"


def test_damaged_meshes_are_read_or_refused_by_name(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "seeds").mkdir()
    files = seeds(tmp_path / "seeds")
    found = {"read": 0, "refused": 0}
    with Reader(TIME_LIMIT) as reader:
        assert all(outcome(reader, path) == "read" for path in files)
        for number in range(FILES):
            seed = files[number % len(files)]
            path = tmp_path / f"damaged{seed.suffix}"
            path.write_bytes(mutated(seed.read_bytes(), rng))
            found[outcome(reader, path)] += 1
        assert all(outcome(reader, path) == "read" for path in files)
    assert sum(found.values()) == FILES
    assert min(found.values()) > FILES // 20, found


def test_damaged_settings_are_understood_or_refused(tmp_path):
    rng = np.random.default_rng(0)
    text = (
        "name: cases\nroot: cases\ntargets: [p, U]\ncomponents: {U: [x, y]}\nglobals: &a [speed]\n"
        "inputs: *a\nsurface: own\nderived: [distance]\nunits: {p: Pa}\ntest: 0.2\ntrain: 1.0\nseed: 0\n"
    ).replace("inputs: *a\n", "")
    path, found = tmp_path / "dataset.yaml", {"read": 0, "refused": 0}
    for _ in range(TEXTS):
        path.write_bytes(mutated(text.encode(), rng))
        try:
            read_dataset(path)
            found["read"] += 1
        except UserError:
            found["refused"] += 1
    assert min(found.values()) > TEXTS // 20, found


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch {ran}']",
        "targets: !!python/name:os.system",
        "targets: " + "[" * 3000,
        "&a targets: *a",
        "targets: &a [*a]",
        "seed: 2026-99-99",
        "\x00",
        "- a\n- b",
    ],
)
def test_settings_that_try_to_run_or_to_exhaust_are_refused(tmp_path, text):
    (tmp_path / "dataset.yaml").write_text(text.replace("{ran}", str(tmp_path / "ran")))
    with pytest.raises(UserError):
        read_dataset(tmp_path / "dataset.yaml")
    assert not (tmp_path / "ran").exists()
