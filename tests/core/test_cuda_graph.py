"""A captured function owns what its graph reads. Stand-ins for CUDA call the work where a GPU records it."""

import gc
import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from jaxtyping import config

from benchmarks.timing import capture_graph
from linearno.core import cuda_graph
from linearno.core.cuda_graph import capture
from linearno.inference.streaming.cuda_graphs import MAX_GRAPHS, GraphCache
from linearno.solvers.captured_steps import capture_step

CUDA = torch.device("cuda", 0)


class Stream:
    def __init__(self, device=CUDA):
        self.device = torch.device(device)

    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        pass


class Cuda(SimpleNamespace):
    """What the stand-ins have seen: events in order, and the stream that work runs on."""


@pytest.fixture
def cuda(monkeypatch):
    seen = Cuda(events=[], current=Stream(), default=None)
    seen.default = seen.current

    class Graph:
        def capture_begin(self, pool, capture_error_mode, **checks):
            assert not gc.isenabled()
            seen.events.append(("begin", pool, capture_error_mode, *checks))

        def capture_end(self):
            seen.events.append("end")

        def replay(self):
            seen.events.append("replay")

        def pool(self):
            return self

    @contextmanager
    def stream(chosen):
        before, seen.current = seen.current, chosen
        try:
            yield
        finally:
            seen.current = before

    @contextmanager
    def device(chosen):
        yield

    for name, stand_in in {
        "CUDAGraph": Graph,
        "Stream": Stream,
        "Event": lambda: SimpleNamespace(record=lambda stream: None),
        "stream": stream,
        "device": device,
        "current_stream": lambda device=None: seen.current,
        "synchronize": lambda device=None: seen.events.append("synchronize"),
        "empty_cache": lambda: seen.events.append("empty_cache"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    config.update("jaxtyping_disable", True)  # stand-ins are of other types
    yield seen
    config.update("jaxtyping_disable", False)


class Weights:
    """Stands for what a function reads."""


def step_on(weights):
    def step():
        assert weights is not None

    return step


def test_a_graph_keeps_what_its_function_reads(cuda):
    weights = Weights()
    alive = weakref.ref(weights)
    replay = capture_graph(step_on(weights), CUDA)
    del weights
    gc.collect()
    assert alive() is not None
    del replay
    gc.collect()
    assert alive() is None


def test_a_recorded_step_of_a_solver_keeps_what_it_reads(cuda):
    weights, state = Weights(), torch.zeros(3)
    alive = weakref.ref(weights)
    on_cuda = SimpleNamespace(device=CUDA, clone=state.clone, copy_=state.copy_)
    advance = capture_step(step_on(weights), [on_cuda])
    del weights
    gc.collect()
    assert alive() is not None
    advance()
    assert cuda.events[-1] == "replay"


def test_what_is_kept_can_be_named_instead_of_the_function(cuda):
    weights, inputs = Weights(), Weights()
    dropped, kept = weakref.ref(weights), weakref.ref(inputs)
    replay = capture(step_on(weights), stream=Stream(), keep_alive=inputs)
    del weights, inputs
    gc.collect()
    assert dropped() is None
    assert kept() is not None
    assert replay() is None


def test_warm_up_comes_before_the_capture_and_a_replay_calls_nothing(cuda):
    def work():
        cuda.events.append("work")
        assert cuda.current is stream
        return torch.ones(2)

    stream = Stream()
    replay = capture(work, stream=stream, warmup=2)
    before = ["work", "work", "synchronize", "empty_cache"]
    assert cuda.events == [*before, ("begin", None, "global"), "work", "end"]
    assert replay() is replay.result
    assert cuda.events[-1] == "replay"
    again = capture(work, stream=stream, pool=replay.pool, concurrent=True)
    assert cuda.events[-3:] == [("begin", replay.pool, "thread_local"), "work", "end"]
    assert again.result is not replay.result


def test_after_an_error_stream_and_collector_are_as_before(cuda):
    def fails():
        raise ValueError("no such mesh")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="no such mesh"):
        capture(fails, stream=Stream())
    assert cuda.events[-1] == "end"
    assert cuda.current is cuda.default
    assert gc.isenabled()


def test_the_environment_asks_pytorch_to_check_that_inputs_are_alive(cuda, monkeypatch):
    monkeypatch.setenv("LINEARNO_CHECK_CAPTURES", "1")
    capture(lambda: None, stream=Stream())
    assert ("begin", None, "global", "check_input_liveness") in cuda.events


def test_captures_of_two_threads_take_turns(cuda):
    begun = threading.Event()

    def other():
        begun.set()
        capture(lambda: cuda.events.append("other"), stream=Stream())

    def work():
        thread.start()
        begun.wait()
        thread.join(0.2)  # it has to wait for this capture
        cuda.events.append("first")

    thread = threading.Thread(target=other)
    capture(work, stream=Stream())
    thread.join()
    assert [event for event in cuda.events if event in ("first", "other")] == ["first", "other"]
    assert gc.isenabled()
    assert cuda_graph._CAPTURE_LOCK.acquire(blocking=False)
    cuda_graph._CAPTURE_LOCK.release()


def test_recordings_of_a_stream_hold_neither_the_model_nor_a_pool_without_graphs(cuda):
    """PyTorch refuses a pool whose graphs are all gone, as after many questions of other sizes."""
    replays, weights, x = GraphCache(CUDA, ()), Weights(), torch.ones(4)
    alive = weakref.ref(weights)

    def asked(key):
        step, begun = step_on(alive()), len(cuda.events)
        found = replays(key, lambda x: (step(), x + 1)[1:], x)
        assert found[0].tolist() == [2.0] * 4
        return [event for event in cuda.events[begun:] if event[0] == "begin"]

    assert asked("a") == []
    assert asked("a") == [("begin", None, "thread_local")]
    (held,) = [known for known in replays.graphs.values() if known is not None]
    asked("b")
    assert asked("b") == [("begin", held.replay.pool, "thread_local")]
    for key in range(MAX_GRAPHS):
        asked(key)
    assert asked(0) == [("begin", None, "thread_local")]
    del weights
    gc.collect()
    assert alive() is None
