"""Streaming on a GPU: copies beside the computation change nothing."""

import numpy as np
import pytest
import torch

from linearno import LinearNO, Transolver, stream
from linearno.inference.streaming import Streamer
from linearno.inference.streaming import cuda_graphs as replay
from linearno.inference.streaming.cuda_graphs import MAX_GRAPH_ELEMENTS, MAX_GRAPHS, graph_cache_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def make(kind, points):
    torch.manual_seed(0)
    model = kind(coords=3, inputs=1, outputs=2, width=64, depth=3, heads=4, slices=16)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return model, torch.rand(points, 3), torch.randn(points, 1)


@pytest.mark.parametrize("keep", ["device", "host", "disk", "recompute"])
@pytest.mark.parametrize("kind", [LinearNO, Transolver])
def test_a_gpu_streams_what_a_cpu_computes_at_once(kind, keep):
    model, coords, inputs = make(kind, 50_001)
    with torch.no_grad():
        whole = model(coords[None], inputs[None])[0]
    model.cuda()
    for _ in range(3):  # a race would not come every time
        found = stream(model, coords, inputs, chunk=4096, keep=keep)
        assert (found - whole).abs().max() < 1e-4 * whole.abs().max()


def test_arrays_may_be_numpys_on_the_device_or_mixed():
    model, coords, inputs = make(LinearNO, 10_000)
    model.cuda()
    whole = stream(model, coords, inputs)
    out = np.zeros((10_000, 2), np.float64)
    stream(model, coords.double().numpy(), inputs.cuda(), chunk=999, out=out)
    torch.testing.assert_close(torch.from_numpy(out).float(), whole, rtol=1e-4, atol=1e-5)
    on_device = stream(model, coords.cuda(), inputs.cuda(), chunk=999, out=torch.empty(10_000, 2).cuda())
    torch.testing.assert_close(on_device.cpu(), whole, rtol=1e-4, atol=1e-5)


def test_memory_stays_within_the_plan():
    model, coords, inputs = make(LinearNO, 2_000_000)
    model.cuda()
    stream(model, coords[:5000], inputs[:5000])
    for keep in ("device", "host", "recompute"):
        streamer = Streamer(model, memory="1GB", keep=keep, precision="bf16")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        streamer.forward(coords, inputs)
        assert torch.cuda.max_memory_allocated() - before <= streamer.plan(2_000_000).bytes <= 1e9


@pytest.mark.parametrize("kind", [LinearNO, Transolver])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_repeated_call_is_replayed_with_its_own_inputs(kind, precision, monkeypatch):
    model, coords, inputs = make(kind, 3000)
    model.cuda()
    streamer = Streamer(model, precision=precision)
    near = 1e-4 if precision == "fp32" else 0.01

    def asked(coords, inputs, places):
        states = streamer.encode(coords, inputs)
        return streamer.forward(coords, inputs), streamer.query(places, states, inputs[: len(places)])

    def check(*question):
        replayed = asked(*question)
        with monkeypatch.context() as patch:
            patch.setattr(replay, "MAX_GRAPH_ELEMENTS", 0)
            for found, computed in zip(replayed, asked(*question), strict=True):
                assert (found - computed).abs().max() < near * computed.abs().max()

    with torch.no_grad():
        for turn in range(4):
            check(coords.roll(turn, 0) * (1 + turn), inputs + turn, torch.rand(500, 3))
        for weight in model.parameters():
            weight.mul_(1.1)  # in their places: a recording reads the new ones
        check(coords, inputs, torch.rand(500, 3))
    recorded = graph_cache_of(model, 1).graphs.values()
    assert sum(one is not None for one in recorded) == len(model.blocks) + 2  # passes, answers, a query


def test_recordings_do_not_outlive_their_number():
    model, coords, inputs = make(LinearNO, 300)
    model.cuda()
    streamer = Streamer(model)
    states = streamer.encode(coords, inputs)
    for points in range(1, 2 * MAX_GRAPHS):
        streamer.query(coords[:points], states, inputs[:points])
    assert len(graph_cache_of(model, 1).graphs) == MAX_GRAPHS
    assert graph_cache_of(model, MAX_GRAPH_ELEMENTS + 1) is None
