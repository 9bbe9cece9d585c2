"""Run the service: device and port are checked first, then uvicorn serves until it is told to stop."""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from linearno.core.errors import UserError
from linearno.inference import load
from linearno.service.app import create_app
from linearno.service.config import ServiceConfig

HEADER_SECONDS = 10.0  # from the start of a connection to its first complete request header
STOP_SECONDS = 30  # for requests in work when the service is told to stop
MAX_CONNECTIONS = 1000
BACKLOG = 1024  # connections that wait to be accepted
MAX_HEADER_BYTES = 2**15
SLOW_REPLY = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    b'{"error":"the header of the request did not arrive in time"}'
)

log = logging.getLogger(__name__)


class Protocol(H11Protocol):
    """HTTP/1.1 that closes connections whose first request header takes too long."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(HEADER_SECONDS, self._require_request)

    def _require_request(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.write(SLOW_REPLY)
            self.transport.close()


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at the address; an error of one line if it is taken."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # connections wait from now on
        return listener
    except socket.gaierror:
        raise UserError(f"host {host!r} is not known; expected 127.0.0.1, 0.0.0.0 or a name") from None
    except PermissionError:
        raise UserError(f"port {port} needs more rights; choose one above 1023 with --port") from None
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"port {port} on {host} cannot be used ({reason}); choose another with --port"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def make_server(app: FastAPI) -> uvicorn.Server:
    """The server of an application, with limits on connections and headers."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=STOP_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    return uvicorn.Server(config)


def serve(
    run: Path, *, host: str = "127.0.0.1", port: int = 8000, devices: Sequence[str] = ("auto",),
    config: ServiceConfig | None = None,
) -> None:  # fmt: skip
    """Serve a run until the process is interrupted or terminated; requests in work are finished.

    Args:
        run: run folder.
        host: address to listen at; the loopback address by default.
        port: port to listen at.
        devices: devices, each with a copy of the surrogate and a queue.
        config: limits.
    """
    config = config or ServiceConfig()
    listener = bound_socket(host, port)
    with listener:
        bundles = [load(run, device) for device in dict.fromkeys(devices)]
        if not is_loopback(host) and config.token is None:
            log.warning("anyone who reaches %s can use the service: set a token", host)
        app = create_app(bundles, config, name=run.resolve().name)
        server = make_server(app)
        actual = listener.getsockname()[1]
        log.info("serving %s at http://%s:%d (API: /docs); stop with Ctrl-C", run, host, actual)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(server.serve(sockets=[listener]))
    log.info("stopped")
