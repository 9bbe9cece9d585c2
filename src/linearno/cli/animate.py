"""`linearno animate`: a rollout as a film."""

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
        typer.Option("--out", "-o", help="a .gif, or .mp4 with ffmpeg; RUN/rollout.gif by default"),
    ] = None,
    case: Annotated[Rank, typer.Option(help="which test sample, by its error")] = Rank.median,
    fps: Annotated[float, typer.Option(min=0.1, max=50, help="frames a second")] = 4.0,
) -> None:
    """Write truth, prediction and error of a rollout, frame by frame, as an animation.

    Its outputs must be frames, as in the recipes `ns/…` and `plasticity/…`. They share one colour scale.

    Example:  linearno animate runs/ns-linearno -o worst.gif --case worst
    """
    with user_errors():
        film = out or run / "rollout.gif"
        frames = write_animation(run, film, case=case, fps=fps)
        console.print(f"animation: {film}  ({frames} frames)")
