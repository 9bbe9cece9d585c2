"""What only a CUDA device has: events, peak memory, replayed graphs."""

import copy
import gc
import inspect
import weakref

import pytest
import torch
from torch import nn

from benchmarks.attention import AttentionShape, bench_attention
from benchmarks.step import StepCase, bench_step, our_step, plain_step
from benchmarks.timing import TimingSettings, capture_graph, measure_ceilings
from linearno.core.device import set_matmul_precision
from linearno.data import FieldSpec
from linearno.models import MODELS
from linearno.training import TrainingConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
SHORT = TimingSettings(warmup=2, rounds=2, repeats=3)
CASE = StepCase(
    name="tiny",
    spec=FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",)),
    points=200,
    model=MODELS["linearno"].config.make({"width": 32, "depth": 2, "heads": 2, "slices": 8}),
    training=TrainingConfig(batch=2),
)


def test_attention_is_timed_eager_and_as_a_graph():
    shape = AttentionShape(2, 333, 2, 16, 8)
    record = bench_attention("tiny", shape, CUDA, ["bf16", "tf32"], compiled=False, settings=SHORT)
    assert record.details["ours"] == "linearno, bf16, graph"
    assert {"plain, bf16", "plain, bf16, graph", "plain, tf32, graph"} <= record.against.keys()
    assert record.details["peak_mib"]["plain, tf32"] > 0
    assert record.details["peak_mib"]["plain, tf32, graph"] is None
    assert torch.cuda.get_device_name(CUDA) in record.machine


def test_a_step_and_the_graph_of_its_peer_run():
    record = bench_step(CASE, CUDA, ["bf16"], compiled=False, settings=SHORT)
    assert record.details["peak_mib"]["linearno, bf16"] > 0
    plain_step(CASE, CUDA, "bf16", graph=True)()
    torch.cuda.synchronize()


def test_ceilings_of_all_precisions():
    ceilings = measure_ceilings(CUDA, size=512)
    assert list(ceilings.tflops) == ["bf16", "tf32", "fp32"]


@pytest.mark.slow
def test_all_precisions_compiled_and_captured_in_one_process():
    """Each capture empties the allocator's cache: memory of a graph that nobody keeps would be gone."""
    record = bench_step(CASE, CUDA, ["bf16", "tf32", "fp32"], compiled=True, settings=SHORT)
    assert record.details["absent"] == {}
    torch.cuda.synchronize()


def test_a_graph_reads_its_weights_after_everybody_else_dropped_them():
    def train(replay):
        """A step, and the model that only the step keeps alive. A capture makes three steps of warm-up."""
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1)).cuda(), torch.randn(50, 64)
        x, optimizer = x.cuda(), torch.optim.AdamW(model.parameters(), capturable=True)

        def work():
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()

        step = capture_graph(work, CUDA) if replay else work
        return step, weakref.ref(model)

    (replayed, model), (eager, twin) = train(True), train(False)
    gc.collect()
    torch.cuda.empty_cache()
    fill = [torch.full((2**16,), torch.nan, device=CUDA) for _ in range(64)]
    fill += [torch.full((2**size,), torch.nan, device=CUDA) for size in range(4, 20)]
    for _ in range(3):
        eager()
    for _ in range(3):
        replayed()
        eager()
    torch.cuda.synchronize()
    assert all(part.isnan().all() for part in fill)
    for ours, theirs in zip(model().parameters(), twin().parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_two_models_train_side_by_side_between_captures_as_each_alone():
    def losses(work):
        state = inspect.getclosurevars(work).nonlocals["state"]
        return state.losses[0].item()

    alone = []
    for precision in ("bf16", "fp32"):
        set_matmul_precision(precision)
        work, found = our_step(CASE, CUDA, precision), []
        for _ in range(8):
            work()
            found.append(losses(work))
        alone.append(found)
        del work
    steps, both = [], [[], []]
    for place in range(14):
        for model, (precision, begins) in enumerate((("bf16", 0), ("fp32", 2))):
            if place == begins:
                set_matmul_precision(precision)
                steps.append(our_step(CASE, CUDA, precision))
            if begins <= place < begins + 8:
                set_matmul_precision(precision)
                steps[model]()
                both[model].append(losses(steps[model]))
        if place % 4 == 3:  # somebody else compiles, captures and goes
            plain_step(CASE, CUDA, "tf32", compiled=place == 3, graph=True)()
            gc.collect()
            torch.cuda.empty_cache()
    assert both == [pytest.approx(found, rel=1e-6) for found in alone]


def test_a_captured_step_is_captured_again_after_moments_were_loaded():
    """The optimizer moves weights and moments to new memory, which an earlier graph does not use."""
    curves = []
    for capture in (True, False):
        work, losses, saved = our_step(CASE, CUDA, "fp32", capture=capture), [], {}
        state = inspect.getclosurevars(work).nonlocals["state"]
        for place in range(14):
            if place == 6:
                state.optimizer.load_state_dict(saved)
                gc.collect()
                torch.cuda.empty_cache()
            work()
            losses.append(state.losses[0].item())
            if place == 1:
                saved = copy.deepcopy(state.optimizer.state_dict())
        curves.append(losses)
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
