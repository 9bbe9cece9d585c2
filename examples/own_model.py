"""A model in one file: a convolutional network on a grid, trained and compared with LinearNO on Darcy flow.

    python examples/own_model.py                                    about half a minute on two cores
    linearno train darcy/local-conv --import examples/own_model.py  the same model from the command line

The signature of the constructor is the configuration: `--set model.width=64`, config.yaml, saving and loading
follow from it.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from linearno.cli import app
from linearno.models import model


@model("local-conv", needs=("grid",))
class LocalConv(nn.Module):
    """Residual 5×5 convolutions on the grid of the data.

    Args:
        width: feature channels.
        depth: number of residual convolutions.
    """

    def __init__(
        self,
        *,
        coords: int,
        inputs: int,
        outputs: int,
        grid: tuple[int, ...],
        width: int = 32,
        depth: int = 4,
    ):
        super().__init__()
        self.grid = grid
        self.lift = nn.Linear(coords + inputs, width)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 5, padding=2) for _ in range(depth))
        self.head = nn.Linear(width, outputs)

    def forward(self, coords: Tensor, inputs: Tensor | None = None) -> Tensor:
        h = self.lift(coords if inputs is None else torch.cat([coords, inputs], dim=-1))  # B N W
        image = h.unflatten(1, self.grid).movedim(-1, 1)  # B W rows columns
        for layer in self.layers:
            image = image + nn.functional.gelu(layer(image))
        return self.head(image.movedim(1, -1).flatten(1, 2))


def main(out: Path, train: int = 160, epochs: int = 8) -> None:
    data = out / "data"
    command("data generate darcy", f"--train={train}", "--test=40", "--resolution=43", f"--out={data}")
    sizes = {"data.root": data, "data.train": train, "data.test": 40, "data.stride": 2}
    settings = [f"--set={name}={value}" for name, value in sizes.items()]
    for name in ("local-conv", "linearno"):
        small = [f"--set=training.epochs={epochs}", "--set=model.width=32", "--set=model.depth=4"]
        command("train", f"darcy/{name}", *settings, *small, f"--out={out / name}", "--device=cpu")
    command("report", out / "local-conv", out / "linearno", f"--out={out / 'report.html'}")


def command(verb: str, *arguments: object) -> None:
    """Run `linearno VERB …` in this process, where the model is registered."""
    app([*verb.split(), *map(str, arguments)], standalone_mode=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("own_model"))
    main(parser.parse_args().out)
