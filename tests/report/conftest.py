"""Run folders as `linearno train` leaves them, with made-up numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

CONFIG = """\
recipe: {recipe}
seed: 3
data:
  name: darcy
  root: data/darcy
model:
  name: linearno
  width: 48
training:
  epochs: 20
  precision: fp32
"""


@pytest.fixture
def make_run():
    return write_run


@pytest.fixture
def make_rollout():
    return write_rollout


@pytest.fixture
def make_timed():
    return write_timed


@pytest.fixture
def make_completion():
    return write_completion


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory):
    """Two finished runs that no test changes."""
    root = tmp_path_factory.mktemp("runs")
    return [write_run(root / "darcy-linearno", seed=1), write_run(root / "darcy-transolver", seed=2)]


def write_run(
    folder: Path,
    *,
    recipe: str = "darcy/linearno",
    grid: tuple[int, int] | None = (9, 7),
    heads: tuple[int, int] = (2, 3),
    seed: int = 0,
    without: tuple[str, ...] = (),
) -> Path:
    """A finished run; `without` names files that it lacks."""
    rng = np.random.default_rng(seed)
    (folder / "figures").mkdir(parents=True)
    cases = make_cases(rng, grid, heads)
    errors = np.sort(rng.lognormal(-3.5, 0.4, 50))
    write = {
        "config.yaml": lambda path: path.write_text(CONFIG.format(recipe=json.dumps(recipe))),
        "model.json": lambda path: path.write_text(json.dumps(make_card(recipe, grid))),
        "metrics.json": lambda path: path.write_text(json.dumps(make_metrics(errors))),
        "per_sample.csv": lambda path: path.write_text(make_csv(errors)),
        "history.jsonl": lambda path: path.write_text(make_history(rng, 20)),
        "figures/cases.npz": lambda path: np.savez_compressed(path, **cases),
    }
    for name in write.keys() - set(without):
        write[name](folder / name)
    return folder


def write_rollout(folder: Path, *, frames: int = 5, channels: int = 1, seed: int = 0) -> Path:
    """A finished run that autoregressive: two known frames, then `frames` whose errors grow."""
    write_run(folder, recipe="ns/linearno", grid=(8, 8), seed=seed)
    rng, steps = np.random.default_rng(seed), np.arange(1, 3 + frames)
    names = [f"w{t}" if channels == 1 else f"w{t}.{c}" for t in steps for c in range(channels)]
    with np.load(folder / "figures" / "cases.npz") as disk:
        arrays = dict(disk)
    x, y = np.moveaxis(arrays["coords"].astype(float), -1, 0)
    waves = [np.sin(6 * x - 0.3 * t + c) * np.cos(4 * y) for t in steps for c in range(channels)]
    fields = np.stack(waves, axis=-1).astype(np.float32)
    arrays["inputs"], arrays["targets"] = fields[..., : 2 * channels], fields[..., 2 * channels :]
    noise = rng.standard_normal(arrays["targets"].shape) * np.arange(1, 1 + frames).repeat(channels)
    arrays["predictions"] = (arrays["targets"] + 0.02 * noise).astype(np.float32)
    np.savez_compressed(folder / "figures" / "cases.npz", **arrays)
    spec = {"coords": ["x", "y"], "inputs": names[: 2 * channels], "outputs": names[2 * channels :]}
    change(
        folder / "model.json", spec=spec | {"grid": [8, 8]}, task={"name": "rollout", "channels": channels}
    )
    by_frame = (0.05 * 1.4 ** np.arange(frames)).tolist()
    change(folder / "metrics.json", metric="relative_l2", relative_l2_by_frame=by_frame)
    return folder


def write_timed(folder: Path, *, frames: int = 5, seed: int = 0) -> Path:
    """A finished run that gives frames by their time: places and a height `w` of points that sink."""
    write_run(folder, recipe="plasticity/linearno", grid=(8, 8), seed=seed)
    with np.load(folder / "figures" / "cases.npz") as disk:
        arrays = dict(disk)
    x, y = np.moveaxis(arrays["coords"].astype(float), -1, 0)
    sunk = [0.1 * t * np.sin(3 * x) * y for t in range(frames)]
    fields = np.stack([part for w in sunk for part in (10 * x, 10 * y - w, w)], axis=-1).astype(np.float32)
    arrays["coords"] = arrays["coords"][:, ::-1]  # of no use to place the points
    arrays["inputs"], arrays["targets"], arrays["predictions"] = fields[..., :1], fields, 1.01 * fields
    np.savez_compressed(folder / "figures" / "cases.npz", **arrays)
    names = [f"{name}{t}" for t in range(frames) for name in "xyw"]
    spec = {"coords": ["s", "r"], "inputs": ["die"], "outputs": names, "grid": [8, 8]}
    places = [name for name in names if name[0] in "xy"]
    units = dict.fromkeys([*names, "die"], "mm")
    change(
        folder / "model.json",
        spec=spec | {"position_outputs": places, "units": units},
        task={"name": "timed", "channels": 3},
    )
    by_frame = (0.05 * np.ones(frames)).tolist()
    change(folder / "metrics.json", metric="relative_l2", relative_l2_by_frame=by_frame)
    return folder


def write_completion(folder: Path, *, observed: int = 11, seed: int = 0) -> Path:
    """A finished run that completes a field over 7 times and 9 points from `observed` values."""
    write_run(folder, recipe="burgers20/linearno", grid=(7, 9), seed=seed)
    rng = np.random.default_rng(seed)
    with np.load(folder / "figures" / "cases.npz") as disk:
        arrays = {name: disk[name] for name in ("sample", "error", "coords", "targets", "predictions")}
    arrays["coords"] = arrays["coords"][..., ::-1]
    arrays["observed"] = np.stack([rng.permutation(63)[:observed] for _ in range(3)])
    np.savez_compressed(folder / "figures" / "cases.npz", **arrays)
    spec = {"coords": ["x", "t"], "inputs": [], "outputs": ["u"], "grid": [7, 9]}
    change(folder / "model.json", spec=spec, task={"name": "completion", "ratio": 0.2})
    mae = {"mean": 0.0321, "median": 0.0301, "std": 0.01, "max": 0.0876, "unit": "dimensionless"}
    change(
        folder / "metrics.json",
        metric="relative_mae",
        relative_mae=mae,
        mean_field={"relative_mae": 0.934, "relative_l2": 0.912},
    )
    rows = "".join(f"{i},{0.03 + 0.001 * i},{0.04 + 0.001 * i}\n" for i in range(50))
    (folder / "per_sample.csv").write_text(f"sample,relative_mae,relative_l2\n{rows}")
    return folder


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def make_card(recipe, grid):
    return {
        "format": 1,
        "recipe": recipe,
        "model": {"name": "linearno", "coords": 2, "inputs": 1, "outputs": 1, "settings": {"width": 48}},
        "spec": {
            "coords": ["x", "y"],
            "inputs": ["coeff"],
            "outputs": ["sol"],
            "units": {"sol": "Pa", "x": "m", "y": "m"},
            "grid": grid,
            "standardised": ["inputs", "outputs"],
        },
        "precision": "fp32",
        "versions": {"python": "3.11.7", "linearno": "0.1.0", "torch": "2.13.0"},
        "seed": 3,
        "commit": "0123456789ab",
        "machine": "Example CPU, Linux",
    }


def make_metrics(errors):
    summary = {"mean": errors.mean(), "median": np.median(errors), "std": errors.std(), "max": errors.max()}
    return {
        "split": "test",
        "samples": len(errors),
        "relative_l2": summary | {"unit": "dimensionless"},
        "mean_field": {"relative_l2": 0.412},
        "parameters": 123456,
        "seconds": {"train": 71.5, "evaluate": 0.42},
        "data": "made by the solver of this library, 9×7 points",
        "device": "CPU, 2 threads",
        "precision": "fp32",
        "protocol": "last epoch, no validation",
    }


def make_csv(errors):
    return "sample,relative_l2\n" + "".join(f"{i},{error:.9g}\n" for i, error in enumerate(errors))


def make_history(rng, epochs):
    lines = []
    for epoch in range(1, epochs + 1):
        loss = 0.5 * np.exp(-epoch / 6) + 0.02 * rng.uniform(0.8, 1.2)
        record = {"epoch": epoch, "step": 125 * epoch, "loss": loss, "lr": 1e-3 * np.sin(np.pi * epoch / 21)}
        lines.append(
            json.dumps(record | {"grad_norm": 0.3, "seconds": 3.5, "samples_per_second": 285.0}) + "\n"
        )
    return "".join(lines)


def make_cases(rng, grid, heads):
    """Three samples of a smooth field, and soft slices along random directions."""
    axes = np.meshgrid(*(np.linspace(0, 1, size) for size in grid or (9, 7)), indexing="ij")
    plane = np.stack(axes, axis=-1).reshape(-1, 2)
    plane = plane if grid else plane + rng.uniform(-0.02, 0.02, plane.shape)
    coords = np.broadcast_to(plane, (3, *plane.shape)).astype(np.float32)
    waves = [
        np.sin(rng.uniform(2, 9) * plane[:, 0] + 5 * plane[:, 1] * rng.uniform(0.5, 1)) for _ in range(3)
    ]
    inputs = np.where(np.stack(waves) > 0, 12.0, 3.0).astype(np.float32)[..., None]
    bubble = np.sin(np.pi * plane[:, 0]) * np.sin(np.pi * plane[:, 1])
    targets = (0.01 * bubble * (1 + 0.2 * np.stack(waves))).astype(np.float32)[..., None]
    noise = rng.standard_normal(targets.shape) * np.array([1, 3, 9])[:, None, None]
    scores = np.einsum("nx,lhxm->lhnm", plane - 0.5, 9 * rng.standard_normal((*heads, 2, 5)))
    phi = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    psi = np.exp(scores) / np.exp(scores).sum(axis=-2, keepdims=True)
    return {
        "sample": np.array([7, 31, 4]),
        "error": np.array([0.011, 0.027, 0.094], dtype=np.float32),
        "coords": coords,
        "inputs": inputs,
        "targets": targets,
        "predictions": (targets + 1e-4 * noise).astype(np.float32),
        "phi_dominant": phi.argmax(-1).astype(np.uint16),
        "psi_dominant": psi.argmax(-1).astype(np.uint16),
        "phi_slice": phi[..., 0].astype(np.float32),
        "psi_slice": psi[..., 0].astype(np.float32),
        "rank": rng.integers(2, 6, heads),
        "slices": np.array(5),
    }
