"""`linearno serve`: predictions of a run over HTTP."""

import os
from typing import Annotated, Any

import typer

from linearno.cli.shared import ImportOption, RunArgument, user_errors
from linearno.core.optional_deps import require_extra
from linearno.models import import_definitions

TOKEN_VARIABLE = "LINEARNO_TOKEN"


def serve(
    run: RunArgument,
    host: Annotated[
        str, typer.Option(help="address to listen at; 0.0.0.0 for all networks of this machine")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0 for any free one")] = 8000,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="DEVICE", help="auto, cpu, cuda:0, …; repeatable, with a queue for each"),
    ] = None,
    token: Annotated[
        str | None, typer.Option(help=f"token that requests need; better in the variable {TOKEN_VARIABLE}")
    ] = None,
    body: Annotated[str, typer.Option(metavar="SIZE", help="largest request")] = "64MB",
    cache: Annotated[str, typer.Option(metavar="SIZE", help="memory of encoded states")] = "1GB",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="memory of a prediction on a large mesh")
    ] = "2GB",
    seconds: Annotated[float, typer.Option(min=0.1, help="time limit of a request")] = 60.0,
    imports: ImportOption = None,
) -> None:
    """Serve predictions of a run over HTTP, to this machine unless told otherwise.

    POST /predict takes arrays (npz, JSON) or a mesh (VTU, VTP, VTK) and returns the same with fields; /encode
    and /query encode once and predict at any points; /health, /metrics and /docs describe the service.
    Ctrl-C or SIGTERM finishes the requests in work and stops.

    Examples:

      linearno serve runs/darcy-linearno
      linearno serve runs/cases-linearno --device cuda:0 --device cuda:1
    """
    with user_errors():
        for package in ("fastapi", "uvicorn"):
            require_extra(package, "service")
        from linearno import service

        import_definitions(imports or [])
        limits: dict[str, Any] = {"body": body, "cache": cache, "memory": memory, "seconds": seconds}
        config = service.ServiceConfig.make(
            limits | {"token": token or os.environ.get(TOKEN_VARIABLE) or None}
        )
        service.serve(run, host=host, port=port, devices=device or ["auto"], config=config)
