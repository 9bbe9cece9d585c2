"""Limits of the service."""

from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from linearno.core.byte_sizes import parse_bytes
from linearno.core.config import Config

Bytes = Annotated[PositiveInt, BeforeValidator(parse_bytes)]


class ServiceConfig(Config):
    """Limits of the service; sizes as a number of bytes or as text such as "64MB".

    Args:
        token: bearer token that requests need; None: no token.
        body: size of a request.
        json_body: size of a request in JSON, which needs about 20 times as much memory as arrays.
        bodies: size of all requests that are being read or processed.
        points: points of a request, over all its samples.
        steps: frames of a rollout.
        seconds: time from the end of an upload to the reply.
        upload_seconds: time of an upload.
        memory: memory within which a mesh of more than `chunked_points` points is taken in chunks.
        chunked_points: number of points above which a mesh is taken in chunks, if the model can do so.
        cache: size of all cached states.
        queue: waiting predictions of a device.
        batch: samples of small requests that one model call takes.
        batch_points: points of a model call with several requests.
        batch_wait: seconds that a request waits for others to share its model call.
        readers: reader processes for mesh files.
    """

    token: Annotated[str, Field(min_length=8)] | None = None
    body: Bytes = 64 * 10**6
    json_body: Bytes = 8 * 10**6
    bodies: Bytes = 512 * 10**6
    points: PositiveInt = 4_000_000
    steps: PositiveInt = 1000
    seconds: PositiveFloat = 60.0
    upload_seconds: PositiveFloat = 30.0
    memory: Bytes = 2 * 10**9
    chunked_points: PositiveInt = 2**16
    cache: Bytes = 10**9
    queue: PositiveInt = 256
    batch: PositiveInt = 32
    batch_points: PositiveInt = 2**16
    batch_wait: Annotated[float, Field(ge=0, le=1)] = 0.002
    readers: PositiveInt = 2
