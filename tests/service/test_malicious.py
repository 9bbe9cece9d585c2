"""Uploads that a service refuses: a 4xx and one line, nothing executed, and the next request is answered."""

import itertools
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.malicious_uploads import uploads
from benchmarks.serve import send
from tests.service.conftest import npz, running

pytest.importorskip("pyvista")
MARK = "/tmp/linearno-executed-by-a-test"
ALL = list(itertools.islice(uploads("a", (4, 5), MARK), 50))
SLOW = {"deeply nested XML"}


@pytest.fixture(scope="module")
def servers(grid_bundle, mesh_bundle):
    limits = {"body": "1MB", "json_body": "100kB", "upload_seconds": 0.5, "readers": 1}
    with running(grid_bundle, **limits) as arrays, running(mesh_bundle, **limits) as meshes:
        yield arrays, meshes


@pytest.mark.parametrize("upload", ALL, ids=lambda upload: upload.name.replace(" ", "-"))
def test_an_upload_is_refused_in_one_line(servers, upload, tmp_path):
    client = servers[upload.kind in ("x-vtu", "x-vtp", "x-vtk")]
    status, body = send(client.port, upload)
    assert 400 <= status < 500, (status, body)
    assert body.startswith(b'{"error":"')
    assert body.count(b"\n") == 0
    assert b"Traceback" not in body
    assert b"/tmp" not in body
    good = servers[0].npz("/predict", a=np.zeros((4, 5), np.float32))
    assert good.status == 200


def test_no_pickle_is_executed(servers):
    for upload in ALL:
        if "pickle" in upload.name:
            send(servers[0].port, upload)
    assert not Path(MARK).exists()


def test_a_slow_header_is_refused(grid_bundle, monkeypatch):
    monkeypatch.setattr("linearno.service.server.HEADER_SECONDS", 0.3)
    with running(grid_bundle) as client, socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\n")
        began, reply = time.monotonic(), connection.recv(1000)
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began >= 0.2


def test_a_full_queue_asks_to_come_back(grid_bundle):
    with running(grid_bundle, bodies=10) as client:
        reply = client.request("POST", "/predict", npz(a=np.zeros((4, 5), np.float32)), "x-npz")
        assert reply.status == 503
        assert reply.headers["retry-after"] == "1"
        assert client.get("/health").status == 200
