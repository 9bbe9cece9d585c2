"""Timing: what is counted, who is left out, and why."""

import pytest
import torch

from benchmarks.timing import Candidate, Timing, TimingSettings, measure_ceilings, peak_mib, time_candidates

CPU = torch.device("cpu")
SHORT = TimingSettings(warmup=1, rounds=3, repeats=2)


def test_median_and_quartiles_of_known_times():
    timing = Timing.of([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (timing.low, timing.median, timing.high, timing.calls) == (2.0, 3.0, 4.0, 5)
    assert Timing.of([7.0]) == Timing(7.0, 7.0, 7.0, 1)


def test_candidates_are_called_in_turn():
    calls = []
    entries = {name: lambda name=name: Candidate(lambda: calls.append(name)) for name in "ab"}
    results = time_candidates(entries, CPU, SHORT)
    assert "".join(calls) == "ab" + "aabb" * 3
    assert {name: timing.calls for name, timing in results.times.items()} == {"a": 6, "b": 6}
    assert results.peak_mib == {"a": None, "b": None}


def test_one_that_cannot_run_is_named_and_the_others_go_on():
    def broken():
        raise RuntimeError("no compiler here\nand a long trace")

    entries = {"fine": lambda: Candidate(lambda: None), "broken": broken}
    results = time_candidates(entries, CPU, SHORT)
    assert list(results.times) == ["fine"]
    assert results.absent == {"broken": "no compiler here"}
    with pytest.raises(RuntimeError, match="no compiler"):
        time_candidates(entries, CPU, SHORT, required="broken")


def test_a_time_as_a_fraction_of_what_the_device_reaches():
    ceilings = measure_ceilings(CPU, size=32)
    assert list(ceilings.tflops) == ["fp32"]
    assert ceilings.tflops["fp32"] > 0
    assert ceilings.copy_gb > 0
    assert peak_mib(lambda: None, CPU) is None
