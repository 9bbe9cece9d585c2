"""Start the studio: runs and port are checked first, then the page is served and opened in the browser."""

import logging
import secrets
import socket
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from linearno.core.errors import UserError
from linearno.studio.app import StudioApp
from linearno.studio.runs import open_runs

LOOPBACK = ("127.0.0.1", "::1")
VERBOSE_LOGGERS = ("trame", "trame_client", "trame_server", "trame_vtk", "wslink", "aiohttp")

log = logging.getLogger(__name__)


def require_free_port(host: str, port: int) -> int:
    """The port, or a free one for 0; an error of one line if it is taken."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"port {port} on {host} cannot be used ({reason}); choose another with --port"
        ) from None


def launch(
    folders: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8050,
    device: str = "auto",
    browse: bool = True,
) -> None:
    """Serve the studio until the process is interrupted.

    Args:
        folders: run folders.
        host: address to listen at; the loopback address by default.
        port: port to listen at; 0 for any free one.
        device: device of the surrogates.
        browse: whether to open the browser.
    """
    free = require_free_port(host, port)
    for name in VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    app = StudioApp(open_runs(folders, device))
    url = f"http://{'localhost' if host in ('127.0.0.1', '0.0.0.0') else host}:{free}"

    def ready(**_: object) -> None:
        log.info("studio at %s; stop with Ctrl-C", url)
        if browse and not _open(url):
            log.info("no browser was found: open the address above")

    app.server.controller.on_server_ready.add(ready)
    secret = secrets.token_urlsafe(24)
    app.server.controller.on_server_bind.add(lambda server: _add_session(server, secret, host))
    arguments, sys.argv = sys.argv, [sys.argv[0], "--authKey", secret]  # which trame reads
    try:
        app.server.start(
            port=free, host=host, open_browser=False, show_connection_info=False, timeout=0, backend="aiohttp"
        )
    finally:
        sys.argv = arguments


def _add_session(server: Any, secret: str, host: str) -> None:
    """Answer the page's request for its session; other sites cannot read the reply, so not the secret.

    A server on the loopback address refuses other host names, which a site could resolve to that address.
    """

    async def session(request: web.Request) -> web.Response:
        name = request.host.rpartition(":")[0] or request.host
        if host in LOOPBACK and name not in (*LOOPBACK, "localhost", "[::1]"):
            raise web.HTTPForbidden(text=f"the studio is not at {name}")
        scheme = "wss" if request.secure else "ws"
        return web.json_response(
            {"sessionURL": f"{scheme}://{request.host}/ws", "secret": secret, "id": "studio"}
        )

    server.app.router.add_post("/paraview/", session)


def _open(url: str) -> bool:
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
