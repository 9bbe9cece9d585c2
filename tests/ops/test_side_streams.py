"""Which weight gradients may be deferred to side streams, and how the gradients of several uses are summed.

The streams themselves are tested with whole models on a GPU.
"""

import pytest
import torch

from linearno.ops.side_streams import ParameterUse, SideStreams

PARAMETER = 1
VIEW, OTHER_VIEW = (torch.Size([3]), (1,)), (torch.Size([3]), (2,))


@pytest.fixture
def streams(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    return SideStreams(torch.device("cuda"))


def gradients_of(streams, *values):
    """The gradient of PARAMETER that each use in turn returns to autograd."""
    return [
        streams.accumulate((ParameterUse(PARAMETER, True),), (torch.full((3,), value),))[0]
        for value in values
    ]


def test_the_last_use_of_a_parameter_returns_the_sum_of_its_gradients(streams):
    streams.uses[PARAMETER] = [VIEW] * 3
    *before, last = gradients_of(streams, 1.0, 10.0, 100.0)
    assert before == [None, None]
    assert last.tolist() == [111.0] * 3
    assert not streams.partial_sums


def test_the_gradient_of_a_single_use_is_returned_unchanged(streams):
    streams.uses[PARAMETER] = [VIEW]
    assert gradients_of(streams, 2.0)[0].tolist() == [2.0] * 3


def test_a_use_counted_by_another_function_is_not_accumulated(streams):
    streams.uses[PARAMETER] = [VIEW] * 2
    (gradient,) = streams.accumulate((ParameterUse(PARAMETER, False),), (torch.ones(3),))
    assert gradient.tolist() == [1.0] * 3
    assert not streams.partial_sums


@pytest.mark.parametrize(
    ("views", "deferred"),
    [
        ([VIEW], True),
        ([None], True),
        ([VIEW, VIEW], True),
        ([VIEW, OTHER_VIEW], False),
        ([VIEW, None], False),
    ],
)
def test_a_gradient_may_be_deferred_unless_autograd_adds_to_it(streams, views, deferred):
    streams.uses[PARAMETER] = views
    assert streams.may_defer(PARAMETER) == deferred


def test_a_gradient_that_may_not_be_deferred_is_returned_at_once(streams):
    streams.uses[PARAMETER] = [VIEW, None]
    assert [gradient is not None for gradient in gradients_of(streams, 1.0, 2.0)] == [True, True]
