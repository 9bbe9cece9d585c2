"""`linearno bodies`: pictures and VTK files of the cars of a run."""

from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import RunArgument, console, user_errors


def bodies(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder for the files; RUN/bodies by default")
    ] = None,
) -> None:
    """Draw surface pressure, error, velocity and drag of the test cars of a run on ShapeNet-Car.

    For the best, median and worst car: the pressure from three fixed cameras, the velocity in the plane of
    symmetry, and .vtp and .vtu files for ParaView with truth, prediction and error. Also the slices of the
    median car, and predicted against true drag coefficients. Needs pyvista.

    Example:

      linearno bodies runs/shapenet-car-linearno
    """
    with user_errors():
        from linearno.report.bodies import write_bodies

        folder = out or run / "bodies"
        written = write_bodies(run, folder)
        console.print(f"bodies: {len(written)} files in {folder}")
