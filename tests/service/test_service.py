"""The service answers as the surrogate does, whatever the format and however requests are joined."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from linearno.inference.bundle import load
from tests.commands import refused
from tests.service.conftest import npz, running


def field(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def direct(bundle, a):
    """The surrogate's own prediction for fields (…, 4, 5), by channel."""
    values = bundle.predict(torch.from_numpy(a.reshape(-1, 20, 1)))
    return [values[..., channel].reshape(a.shape).numpy() for channel in range(2)]


@pytest.mark.parametrize("shape", [(4, 5), (1, 4, 5), (3, 4, 5), (20,)])
def test_arrays_come_back_in_the_shape_of_the_inputs(client, grid_bundle, shape):
    a = field(1, *shape)
    found = client.npz("/predict", a=a).arrays
    for name, expected in zip("uv", direct(grid_bundle, a), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


def test_json_gives_the_same_as_npz(client):
    a = field(2, 4, 5)
    reply = client.post_json("/predict", {"a": a.tolist()})
    assert reply.headers["content-type"] == "application/json"
    np.testing.assert_allclose(reply.json["u"], client.npz("/predict", a=a).arrays["u"], rtol=1e-5, atol=1e-6)


def test_requests_at_once_share_model_calls_and_get_their_own_answers(grid_bundle):
    fields = [field(seed, 1 + seed % 3, 4, 5) for seed in range(40)]
    with running(grid_bundle, batch=8, batch_wait=0.2) as client, ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda a: client.npz("/predict", a=a), fields))
        text = client.get("/metrics").body.decode()
    for a, reply in zip(fields, replies, strict=True):
        np.testing.assert_allclose(reply.arrays["u"], direct(grid_bundle, a)[0], rtol=1e-4, atol=1e-5)
    calls = next(line for line in text.splitlines() if line.startswith("linearno_model_calls_total{"))
    samples = next(line for line in text.splitlines() if line.startswith("linearno_samples_total{"))
    assert int(samples.split()[-1]) == sum(map(len, fields))
    assert int(calls.split()[-1]) < len(fields)


def test_a_warning_of_one_request_is_not_that_of_its_neighbours(grid_bundle):
    good, bad = field(1, 4, 5), np.full((4, 5), 3e38, np.float32)
    with running(grid_bundle, batch_wait=0.3) as client, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda a: client.npz("/predict", a=a), [good, bad])
    assert first.status == 200
    np.testing.assert_allclose(first.arrays["u"], direct(grid_bundle, good)[0], rtol=1e-4, atol=1e-5)
    assert "linearno-warning" not in first.headers
    assert "NaN or infinite" in second.headers["linearno-warning"]


def test_states_are_encoded_once_and_queried_at_any_points(client, grid_bundle):
    a, points = field(3, 2, 4, 5), np.random.default_rng(4).random((7, 2)).astype(np.float32)
    state = client.npz("/encode", a=a).json
    assert state["samples"] == 2
    assert client.npz("/encode", a=a).json["state"] == state["state"]
    there = field(5, 2, 7, 1)
    found = client.npz(f"/query?state={state['state']}", points=points, inputs=there).arrays
    encoded = grid_bundle.encode(grid_bundle.coords, torch.from_numpy(a.reshape(2, 20, 1)))
    expected = encoded.query(points, there)
    assert found["v"].shape == (2, 7)
    np.testing.assert_allclose(found["v"], expected[..., 1], rtol=1e-5, atol=1e-6)


def test_the_least_recently_used_state_is_dropped(grid_bundle):
    with running(grid_bundle, cache=400) as client:
        first, second = (client.npz("/encode", a=field(seed, 4, 5)).json for seed in (1, 2))
        assert 133 < first["bytes"] < 200
        points = {"points": np.zeros((1, 2), np.float32), "inputs": np.zeros((1, 1), np.float32)}
        assert client.npz(f"/query?state={first['state']}", **points).status == 200
        third = client.npz("/encode", a=field(3, 4, 5)).json
        status = {name: client.npz(f"/query?state={state['state']}", **points).status
                  for name, state in (("first", first), ("second", second), ("third", third))}  # fmt: skip
    assert status == {"first": 200, "second": 404, "third": 200}


def test_a_state_larger_than_the_cache_is_refused(grid_bundle):
    with running(grid_bundle, cache=100) as client:
        assert client.npz("/encode", a=field(1, 4, 5)).status == 413


def test_health_names_what_the_run_takes(client):
    found = client.get("/health").json
    assert found["status"] == "ok"
    assert (found["inputs"], found["outputs"], found["grid"]) == (["a"], ["u", "v"], [4, 5])
    assert not found["needs_coords"]


def test_the_api_is_described_without_files_from_elsewhere(client):
    schema = client.get("/openapi.json").json
    assert {"/predict", "/encode", "/query", "/health", "/metrics"} <= schema["paths"].keys()
    page = client.get("/docs").body.decode()
    assert "POST /predict" in page
    assert "<script" not in page
    assert "http" not in page


def test_a_token_is_needed_where_one_is_set(grid_bundle):
    with running(grid_bundle, token="a long secret") as client:
        body = npz(a=field(1, 4, 5))
        assert client.request("POST", "/predict", body, "x-npz").status == 401
        assert client.request("POST", "/predict", body, "x-npz", authorization="Bearer wrong").status == 401
        right = client.request("POST", "/predict", body, "x-npz", authorization="Bearer a long secret")
        assert right.status == 200
        assert client.get("/health").status == 200
        assert client.get("/metrics").status == 401


def test_a_stopping_service_finishes_the_requests_in_work(grid_bundle):
    replies = []
    with running(grid_bundle, batch_wait=0.5) as client:
        thread = threading.Thread(target=lambda: replies.append(client.npz("/predict", a=field(1, 4, 5))))
        thread.start()
        while b"linearno_body_bytes 0\n" in client.get("/metrics").body:
            pass
    thread.join()
    assert replies[0].status == 200


def test_a_taken_port_is_one_line(client, tmp_path, grid_bundle):
    grid_bundle.save(tmp_path)
    assert load(tmp_path)
    assert f"port {client.port} on 127.0.0.1 cannot be used" in refused(
        "serve", tmp_path, "--port", client.port
    )


def test_no_run_is_one_line(tmp_path):
    assert "nowhere" in refused("serve", tmp_path / "nowhere", "--port", 0)
