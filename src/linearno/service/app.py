"""Routes of the service. Axes: S samples, N points, Q query points, X coordinates, C channels."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from linearno.core.errors import UserError, shorten
from linearno.core.version import VERSION
from linearno.inference import Bundle
from linearno.service.api_page import api_page
from linearno.service.config import ServiceConfig
from linearno.service.errors import MAX_REPLY_LENGTH, RequestError
from linearno.service.formats import FORMATS, format_of
from linearno.service.surrogate import Reply, Surrogate

OPEN_ROUTES = ("/health", "/docs", "/openapi.json")  # without a token
GIVEN = Query(description="number of the case that the mesh does not hold, as NAME=VALUE; repeatable")
BODY = {
    "requestBody": {
        "required": True,
        "content": {name: {"schema": {"type": "string", "format": "binary"}} for name in FORMATS},
    }
}


def create_app(
    bundles: Sequence[Bundle], config: ServiceConfig | None = None, *, name: str = "run"
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        bundles: the surrogate on each device.
        config: limits.
        name: name of the run, for clients.
    """
    config = config or ServiceConfig()
    surrogate = Surrogate(bundles, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(surrogate.close)

    app = FastAPI(
        title="linearno", version=VERSION, docs_url=None, redoc_url=None, lifespan=lifespan,
        description=f"Predictions of {name}, in physical units. Arrays as npz or JSON; VTU, VTP, VTK.",
    )  # fmt: skip
    _add_errors(app)
    _add_checks(app, surrogate, config)
    _add_predictions(app, surrogate, config)
    _add_status(app, surrogate, name)
    return app


def _add_predictions(app: FastAPI, surrogate: Surrogate, config: ServiceConfig) -> None:
    def limit(kind: str) -> int:
        return min(config.json_body, config.body) if kind == "json" else config.body

    @app.post("/predict", openapi_extra=BODY, response_class=Response)
    async def predict(
        request: Request,
        steps: Annotated[int | None, Query(ge=1, le=config.steps, description="frames of a rollout")] = None,
        given: Annotated[list[str] | None, GIVEN] = None,
    ) -> Response:
        """Predict at the points of the samples or of the mesh.

        Arrays are named as the fields of the run, with `coords` if it was trained on several meshes; the
        reply has one array for each output. A mesh comes back with fields such as `p_predicted`.
        """
        kind = format_of(request)
        async with surrogate.bodies.read(request, limit(kind)) as body:
            return _response(await surrogate.predict(body, kind, steps, _numbers(given)))

    @app.post("/encode", openapi_extra=BODY)
    async def encode(request: Request, given: Annotated[list[str] | None, GIVEN] = None) -> dict[str, Any]:
        """Encode samples or a mesh once, for `/query`; the reply has the key `state`."""
        kind = format_of(request)
        async with surrogate.bodies.read(request, limit(kind)) as body:
            key = hashlib.sha256(repr((kind, sorted(given or []))).encode() + body).hexdigest()[:32]
            return await surrogate.encode(key, body, kind, _numbers(given))

    @app.post("/query", openapi_extra=BODY, response_class=Response)
    async def query(
        request: Request,
        state: Annotated[str, Query(max_length=64, description="key from /encode")],
    ) -> Response:
        """Predict at `points` (Q, X) from a cached state; give `inputs` (Q, C) if the run takes some."""
        kind = format_of(request)
        if kind not in ("npz", "json"):
            raise RequestError(415, "query points are sent as npz or JSON, with the array points")
        async with surrogate.bodies.read(request, limit(kind)) as body:
            return _response(await surrogate.query(state, body, kind))


def _add_status(app: FastAPI, surrogate: Surrogate, name: str) -> None:
    @app.get("/health")
    async def health() -> dict[str, Any]:
        """State of the service, and what the run takes and predicts."""
        return {"status": "ok", "run": name, "version": VERSION, **surrogate.description}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """Counters in the text format of Prometheus."""
        return surrogate.metrics_text()

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(api_page(app.openapi()))


def _add_errors(app: FastAPI) -> None:
    """Every error is a status and one line."""

    @app.exception_handler(UserError)
    async def user_error(request: Request, error: UserError) -> JSONResponse:
        status = error.status if isinstance(error, RequestError) else 400
        headers = {"retry-after": "1"} if status == 503 else None
        return JSONResponse({"error": shorten(str(error), MAX_REPLY_LENGTH)}, status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:]))
        return JSONResponse({"error": shorten(f"{place}: {first['msg']}", MAX_REPLY_LENGTH)}, 422)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "the service failed; its log has the reason"}, 500)


def _add_checks(app: FastAPI, surrogate: Surrogate, config: ServiceConfig) -> None:
    """Token and time of each request."""
    expected = None if config.token is None else f"Bearer {config.token}".encode()

    @app.middleware("http")
    async def check(request: Request, call_next: Callable[[Request], Any]) -> Response:
        began = time.perf_counter()
        given = request.headers.get("authorization", "").encode()
        if expected and request.url.path not in OPEN_ROUTES and not hmac.compare_digest(given, expected):
            message = {"error": "a token is needed: send the header Authorization: Bearer TOKEN"}
            response: Response = JSONResponse(message, 401, {"www-authenticate": "Bearer"})
        else:
            response = await call_next(request)
        route = request.scope.get("route")
        path = getattr(route, "path", "other")
        surrogate.metrics.request(path, response.status_code, time.perf_counter() - began)
        return response


def _response(reply: Reply) -> Response:
    headers = {"linearno-seconds": f"{reply.seconds:.6f}"}
    if reply.warnings:
        text = " | ".join(reply.warnings).encode("ascii", "replace").decode()
        headers["linearno-warning"] = shorten(text, MAX_REPLY_LENGTH).replace("…", "...")
    return Response(reply.body, media_type=reply.media_type, headers=headers)


def _numbers(given: Sequence[str] | None) -> Mapping[str, float]:
    numbers = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        try:
            numbers[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise RequestError(422, f"given={shorten(text, 80)}: expected NAME=VALUE with a number")
    return numbers
