"""Speed, memory and accuracy, measured: what `linearno bench` runs, and the records it writes."""

from linearno.bench.attention import SHAPES, AttentionShape, bench_attention
from linearno.bench.scale import bench_growth, bench_predict, bench_query, bench_train
from linearno.bench.step import StepCase, bench_step
from linearno.bench.timing import Effort, compete, measure_ceilings
from linearno.bench.train import record_of_run, record_runs

__all__ = [
    "SHAPES",
    "AttentionShape",
    "Effort",
    "StepCase",
    "bench_attention",
    "bench_growth",
    "bench_predict",
    "bench_query",
    "bench_step",
    "bench_train",
    "compete",
    "measure_ceilings",
    "record_of_run",
    "record_runs",
]
