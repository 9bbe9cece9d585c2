"""What only a CUDA device has: events, peak memory, replayed graphs."""

import pytest
import torch

from linearno.bench import AttentionShape, Effort, StepCase, bench_attention, bench_step, measure_ceilings
from linearno.bench.step import plain_step
from linearno.data import FieldSpec
from linearno.models import MODELS
from linearno.training import TrainingConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
SHORT = Effort(warmup=2, rounds=2, repeats=3)
CASE = StepCase(
    name="tiny",
    spec=FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",)),
    points=200,
    model=MODELS["linearno"].config.make({"width": 32, "depth": 2, "heads": 2, "slices": 8}),
    training=TrainingConfig(batch=2),
)


def test_attention_is_timed_eager_and_as_a_graph():
    shape = AttentionShape(2, 333, 2, 16, 8)
    record = bench_attention("tiny", shape, CUDA, ["bf16", "tf32"], compiled=False, effort=SHORT)
    assert record.details["ours"] == "linearno, bf16, graph"
    assert {"plain, bf16", "plain, bf16, graph", "plain, tf32, graph"} <= record.against.keys()
    assert record.details["peak_mib"]["plain, tf32"] > 0
    assert record.details["peak_mib"]["plain, tf32, graph"] is None
    assert torch.cuda.get_device_name(CUDA) in record.machine


def test_a_step_and_the_graph_of_its_peer_run():
    record = bench_step(CASE, CUDA, ["bf16"], compiled=False, effort=SHORT)
    assert record.details["peak_mib"]["linearno, bf16"] > 0
    plain_step(CASE, CUDA, "bf16", graph=True)()
    torch.cuda.synchronize()


def test_ceilings_of_all_precisions():
    ceilings = measure_ceilings(CUDA, size=512)
    assert list(ceilings.tflops) == ["bf16", "tf32", "fp32"]
