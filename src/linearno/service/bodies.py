"""Read the body of a request within limits of size and time, and of the size of all bodies together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from linearno.service.config import ServiceConfig
from linearno.service.errors import RequestError


class BodyReader:
    """Reads bodies; `size` is the number of bytes of all requests in work."""

    def __init__(self, config: ServiceConfig):
        self._config = config
        self.size = 0

    @asynccontextmanager
    async def read(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """The body of at most `limit` bytes, counted until the end of the context."""
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise RequestError(413, f"the body has {int(declared)} bytes; at most {limit} are accepted")
        body, own = bytearray(), 0
        try:
            try:
                async with asyncio.timeout(self._config.upload_seconds):
                    async for part in request.stream():
                        body += part
                        own += len(part)
                        self.size += len(part)
                        self._require_limits(len(body), limit)
            except TimeoutError:
                message = f"the upload took more than {self._config.upload_seconds:g} s; send it faster"
                raise RequestError(408, message) from None
            except ClientDisconnect:
                raise RequestError(400, "the client closed the connection") from None
            if not body:
                raise RequestError(400, "the body is empty; send arrays or a mesh")
            yield bytes(body)
        finally:
            self.size -= own

    def _require_limits(self, size: int, limit: int) -> None:
        if size > limit:
            raise RequestError(413, f"the body has more than the {limit} bytes that are accepted")
        if self.size > self._config.bodies:
            raise RequestError(503, "too many large requests at once; send it again later")
