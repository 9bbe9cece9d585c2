"""Conformal intervals contain the share of values that they promise, on data that they have not seen."""

import pytest
import torch

from linearno.inference.intervals import calibrate, coverage


def draws(count, seed):
    """Errors whose standard deviation differs between points, and an estimate that is too small."""
    generator = torch.Generator().manual_seed(seed)
    deviations = [0.1 + torch.rand(300, 2, generator=generator) for _ in range(count)]
    errors = [3 * part * torch.randn(300, 2, generator=generator) for part in deviations]
    return errors, deviations


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_calibrated_intervals_cover_new_cases_though_the_deviations_are_wrong(level):
    intervals = calibrate(*draws(20, 0), torch.ones(2), level)
    errors, deviations = draws(20, 1)
    found = coverage(torch.stack(errors), intervals.half_widths(torch.stack(deviations), torch.stack(errors)))
    torch.testing.assert_close(found, torch.full((2,), level), atol=0.03, rtol=0)


def test_without_a_standard_deviation_intervals_are_as_wide_everywhere_and_ignore_unknown_values():
    errors, _ = draws(20, 0)
    errors[0][:50, 1] = float("nan")
    intervals = calibrate(errors, None, torch.tensor([2.0, 5.0]))
    new, _ = draws(20, 1)
    widths = intervals.half_widths(None, torch.stack(new))
    assert (widths == widths[0, 0]).all()
    new[3][:10] = float("nan")
    torch.testing.assert_close(coverage(torch.stack(new), widths), torch.full((2,), 0.9), atol=0.03, rtol=0)
