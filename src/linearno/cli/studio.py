"""`linearno studio`: explore runs in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from linearno.cli.shared import DeviceOption, ImportOption, user_errors
from linearno.core.optional_deps import require_extra
from linearno.models import import_definitions


def studio(
    runs: Annotated[list[Path], typer.Argument(help="run folders, written by `linearno train`")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0 for any free one")] = 8050,
    host: Annotated[
        str, typer.Option(help="address to listen at; other machines reach 0.0.0.0 without a password")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="open the page in the browser")] = True,
    device: DeviceOption = "auto",
    imports: ImportOption = None,
) -> None:
    """Explore runs in the browser: change a design and see the prediction follow.

    Design: sliders, control points, brush, cases or an uploaded mesh, and the real solver next to the
    surrogate. Inside: slice weights and ranks. Trust: how far the design is from the training samples. Runs:
    curves, errors and the same sample side by side; a training that is going on is followed.

    Examples:

      linearno studio runs/darcy-linearno
      linearno studio runs/darcy-linearno runs/darcy-fno --port 8060
    """
    with user_errors():
        for package in ("trame", "trame_vtk", "pyvista"):
            require_extra(package, "studio")
        from linearno.studio import launch

        import_definitions(imports or [])
        launch(runs, host=host, port=port, device=device, browse=browser)
