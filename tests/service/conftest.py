"""A service in a thread of the test, and clients."""

import io
import json
import threading
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import NamedTuple

import numpy as np
import pytest
import torch

try:
    import fastapi  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError:  # without the extra `service` there is nothing to test here
    collect_ignore_glob = ["test_*.py"]

from linearno import LinearNO
from linearno.data import Batch, FieldSpec, Scaler
from linearno.inference import Bundle
from linearno.meshes.config import MeshFields
from tests.patience import PATIENCE

SMALL = {"width": 8, "depth": 1, "heads": 2, "slices": 4}


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: dict

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def arrays(self):
        with np.load(io.BytesIO(self.body), allow_pickle=False) as file:
            return dict(file)


class Client:
    """Requests to one address."""

    def __init__(self, port, app=None):
        self.port, self.app = port, app

    def request(self, method, path, body=None, kind=None, **headers):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if kind is not None:
            sent["content-type"] = f"application/{kind}"
        try:
            connection.request(method, path, body, sent)
            reply = connection.getresponse()
            return Reply(reply.status, reply.read(), {k.lower(): v for k, v in reply.getheaders()})
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.request("GET", path, **headers)

    def npz(self, path, **arrays):
        return self.request("POST", path, npz(**arrays), "x-npz")

    def post_json(self, path, value):
        return self.request("POST", path, json.dumps(value).encode(), "json")


def npz(**arrays):
    target = io.BytesIO()
    np.savez(target, **arrays)
    return target.getvalue()


@contextmanager
def running(*bundles, **limits):
    """A client of a service of these surrogates."""
    from linearno.service import ServiceConfig, create_app
    from linearno.service.server import bound_socket, make_server

    listener = bound_socket("127.0.0.1", 0)
    app = create_app(bundles, ServiceConfig.make(limits))
    server = make_server(app)
    thread = threading.Thread(target=server.run, args=([listener],))
    with listener:
        thread.start()
        try:
            yield Client(listener.getsockname()[1], app)
        finally:
            server.should_exit = True
            thread.join()


def surrogate(spec, coords, **fields):
    """An untrained surrogate with the scaler of random fields."""
    torch.manual_seed(0)
    points = coords if coords is not None else torch.rand(30, len(spec.coords))
    count = {"coords": len(spec.coords), "inputs": len(spec.inputs), "outputs": len(spec.outputs)}
    inputs = 3 + torch.randn(4, len(points), count["inputs"]) if spec.inputs else None
    batch = Batch(points.expand(4, -1, -1), inputs, torch.randn(4, len(points), count["outputs"]))
    model = LinearNO(**count, **SMALL).eval()
    return Bundle(model, Scaler.fit(spec, batch), spec, coords, "test", 0, **fields)


ALL = ("coords", "inputs", "outputs")


@pytest.fixture(scope="session")
def grid_bundle():
    """Inputs `a` to outputs `u` and `v` on one grid of 4×5 points."""
    spec = FieldSpec(
        coords=("x", "y"), inputs=("a",), outputs=("u", "v"), grid=(4, 5), standardised=ALL, units={"u": "Pa"}
    )
    return surrogate(spec, torch.cartesian_prod(torch.linspace(0, 1, 4), torch.linspace(0, 1, 5)))


@pytest.fixture(scope="session")
def mesh_bundle():
    """Pressure on meshes in a plane from a number of the case, `speed`."""
    fields = MeshFields(coords=("x", "y"), targets=("p",), globals=("speed",))
    return surrogate(fields.spec, None, mesh_fields=fields)


@pytest.fixture(scope="session")
def client(grid_bundle):
    with running(grid_bundle, body="1MB", json_body="100kB", points=4000, upload_seconds=1.0) as client:
        yield client


@pytest.fixture(scope="session")
def mesh_client(mesh_bundle):
    with running(mesh_bundle, body="1MB", readers=1) as client:
        yield client
