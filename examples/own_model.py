"""A model of your own in one file: a convolutional network on a grid, next to LinearNO.

    python examples/own_model.py                                    about a minute on two cores
    linearno train darcy/local-conv --import examples/own_model.py  the same model from the command line

The constructor's signature is the configuration: `--set model.width=64`, config.yaml, saving and loading
follow from it.
"""

import argparse

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="own_model")
    out = parser.parse_args().out
    data = f"{out}/data"
    app(
        f"data generate darcy --train 200 --test 40 --resolution 85 --out {data}".split(),
        standalone_mode=False,
    )
    small = ["--set=data.train=200", "--set=data.test=40", "--set=data.stride=3", "--set=training.epochs=10"]
    for name in ("local-conv", "linearno"):
        run = ["train", f"darcy/{name}", f"--set=data.root={data}", *small, f"--out={out}/{name}"]
        app([*run, "--set=model.width=32"], standalone_mode=False)
    app(["report", f"{out}/local-conv", f"{out}/linearno", "-o", f"{out}/report.html"], standalone_mode=False)
