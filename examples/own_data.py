"""Your own simulations, from nothing: make a folder of meshes, look, train, predict on new ones, draw.

    python examples/own_data.py            about a minute on two cores; writes the folder own_data/

With a folder of your own in place of own_data/simulations, leave out the first step.
"""

import argparse
from pathlib import Path

import numpy as np
import pyvista

from linearno.cli import app
from linearno.viz import Case, case_figure, png_bytes

SMALL = {"model.width": 32, "model.depth": 3, "model.heads": 2, "model.slices": 16}
SMALL |= {"training.epochs": 24, "training.batch": 4, "training.lr": 0.003}


def main(out: Path, plates: int = 180, settings: dict[str, object] = SMALL, size: int = 10) -> None:
    cases, new, run = out / "simulations", out / "new", out / "run"
    dataset, picture = out / "dataset.yaml", out / "picture.png"
    pull = ["--train", plates, "--test", 1, "--resolution", size]
    linearno("data", "generate", "cases", *pull, "--out", cases)
    linearno("init", cases, "--derived", "distance,normals", "--out", dataset)
    linearno(
        "train",
        dataset,
        *(word for pair in settings.items() for word in ("--set", "=".join(map(str, pair)))),
        "--out",
        run,
    )
    linearno(
        "data",
        "generate",
        "cases",
        "--train",
        2,
        "--test",
        1,
        "--resolution",
        2 * size,
        "--seed",
        1,
        "--out",
        new,
    )
    linearno("predict", run, new, "--out", out / "predicted")
    picture.write_bytes(draw(out / "predicted" / "plate_0002.vtu"))
    print(f"picture: {picture}   in ParaView: open {out / 'predicted'}")


def linearno(*words: object) -> None:
    """A command, as one would type it."""
    text = [str(word) for word in words]
    print("\n$ linearno", *text)
    app(text, standalone_mode=False)


def draw(path: Path) -> bytes:
    """Truth, prediction and error of the stress on a mesh that comes from `linearno predict`."""
    mesh = pyvista.read(path)
    truth, prediction = (np.asarray(mesh.point_data[name], float) for name in ("stress", "stress_predicted"))
    places = np.asarray(mesh.points, float)[:, :2]
    case = Case(places, truth, prediction, axis_labels=("x", "y"), output_label="von Mises stress, MPa")
    return png_bytes(case_figure(case))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("own_data"))
    main(parser.parse_args().out)
