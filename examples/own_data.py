"""Your own simulations, from nothing: make a folder of meshes, look, train, predict on new ones, draw.

    python examples/own_data.py            about a minute on two cores; writes the folder own_data/

With a folder of your own in place of own_data/simulations, leave out the first step.
"""

import argparse
from pathlib import Path

import numpy as np
import pyvista
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.tri import Triangulation

from linearno.cli import app
from linearno.viz import png_bytes

SMALL = {"model.width": 32, "model.depth": 3, "model.heads": 2, "model.slices": 16}
SMALL |= {"training.epochs": 24, "training.batch": 4, "training.lr": 0.003}


def main(out: Path, plates: int = 180, settings: dict[str, object] = SMALL, size: int = 10) -> None:
    cases, dataset, run, new = out / "simulations", out / "dataset.yaml", out / "run", out / "new"
    linearno("data generate cases", train=plates, test=1, resolution=size, out=cases)
    linearno("init", cases, derived="distance,normals", out=dataset)
    linearno("train", dataset, *(f"--set={name}={value}" for name, value in settings.items()), out=run)
    linearno("data generate cases", train=2, test=1, resolution=2 * size, seed=1, out=new)
    linearno("predict", run, new, out=out / "predicted")
    (out / "picture.png").write_bytes(draw(out / "predicted" / "plate_0002.vtu"))
    print(f"picture: {out / 'picture.png'}   in ParaView: open {out / 'predicted'}")


def linearno(command: str, *words: object, **options: object) -> None:
    """A command, as one would type it."""
    given = [f"--{name}={value}" for name, value in options.items()]
    text = [*command.split(), *map(str, words), *given]
    print("\n$ linearno", *text)
    app(text, standalone_mode=False)


def draw(path: Path) -> bytes:
    """The mesh, and truth, prediction and error of the stress on it, as `linearno predict` wrote them."""
    mesh = pyvista.read(path)
    quads = np.asarray(mesh.cell_connectivity).reshape(-1, 4)
    x, y, _ = np.asarray(mesh.points).T
    triangles = Triangulation(x, y, quads[:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3))
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    axes = figure.subplots(1, 4)
    edges = np.stack([x[quads[:, [0, 1, 2, 3, 0]]], y[quads[:, [0, 1, 2, 3, 0]]]], axis=-1)
    axes[0].add_collection(LineCollection(edges, linewidths=0.4, colors="0.3"))
    axes[0].set_title(f"a new mesh, {mesh.n_points:,} points")
    truth = np.asarray(mesh["stress"])
    panels = {"stress": "true stress", "stress_predicted": "predicted", "stress_error": "error"}
    for panel, (name, title) in zip(axes[1:], panels.items(), strict=True):
        values = np.abs(mesh[name]) if name == "stress_error" else np.asarray(mesh[name])
        scale = {} if name == "stress_error" else {"vmin": 0, "vmax": truth.max()}
        shades = "magma" if name == "stress_error" else "viridis"
        drawn = panel.tripcolor(triangles, values, shading="gouraud", cmap=shades, **scale)
        figure.colorbar(drawn, ax=panel, orientation="horizontal", label="MPa")
        panel.set_title(title)
    for panel in axes:
        panel.set_aspect("equal")
        panel.set_axis_off()
    axes[0].autoscale_view()
    return png_bytes(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("own_data"))
    main(parser.parse_args().out)
