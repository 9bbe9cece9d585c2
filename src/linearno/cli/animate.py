"""`linearno animate`: a rollout as an animation."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import RunArgument, console, user_errors
from linearno.report import write_animation


class Rank(StrEnum):
    best = "best"
    median = "median"
    worst = "worst"


def animate(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="a .gif, or an .mp4 with ffmpeg; RUN/rollout.gif by default"),
    ] = None,
    case: Annotated[Rank, typer.Option(help="test sample, by its error")] = Rank.median,
    fps: Annotated[float, typer.Option(min=0.1, max=50, help="frames per second")] = 4.0,
) -> None:
    """Write an animation of a rollout: truth, prediction and error.

    The outputs of the run must be frames, as in the recipes `ns/…` and `plasticity/…`. All frames have the
    same colour scale.

    Example:

      linearno animate runs/ns-linearno -o worst.gif --case worst
    """
    with user_errors():
        path = out or run / "rollout.gif"
        frames = write_animation(run, path, case=case, fps=fps)
        console.print(f"animation: {path}  ({frames} frames)")
