"""`linearno animate`: write a rollout as an animation."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import RunArgument, console, user_errors
from linearno.report import write_animation


class Rank(StrEnum):
    """Rank of a test sample by its error."""

    best = "best"
    median = "median"
    worst = "worst"


def animate(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help=".gif, or .mp4 if ffmpeg is installed; RUN/rollout.gif by default"),
    ] = None,
    case: Annotated[Rank, typer.Option(help="test sample, ranked by error")] = Rank.median,
    fps: Annotated[float, typer.Option(min=0.1, max=50, help="frames per second")] = 4.0,
) -> None:
    """Write a rollout as an animation of truth, prediction and error.

    The run must predict frames, as the recipes `ns/…` and `plasticity/…` do. All frames share one colour
    scale.

    Example:

      linearno animate runs/ns-linearno -o worst.gif --case worst
    """
    with user_errors():
        path = out or run / "rollout.gif"
        frames = write_animation(run, path, case=case, fps=fps)
        console.print(f"animation: {path}  ({frames} frames)")
