"""Which gradients of weights may be made beside the others, and how those of several uses become one.

That the streams themselves lose nothing is tested with whole models, on a GPU.
"""

import pytest
import torch

from linearno.ops.side_streams import ParameterUse, SideStreams

PARAMETER, OTHER = 1, 2
VIEW, TRANSPOSED = (torch.Size([3]), (1,)), (torch.Size([3]), (2,))


@pytest.fixture
def streams(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    return SideStreams(torch.device("cuda"))


def gradients_of(streams, *values):
    """What each use in turn hands on of its gradient for LEAF."""
    return [
        streams.accumulate((ParameterUse(PARAMETER, True),), (torch.full((3,), value),))[0]
        for value in values
    ]


def test_of_a_parameter_used_several_times_the_last_use_hands_on_the_sum(streams):
    streams.uses[PARAMETER] = [VIEW] * 3
    *before, last = gradients_of(streams, 1.0, 10.0, 100.0)
    assert before == [None, None]
    assert last.tolist() == [111.0] * 3
    assert not streams.partial_sums


def test_of_a_parameter_used_once_the_gradient_is_handed_on_as_it_is(streams):
    streams.uses[PARAMETER] = [VIEW]
    assert gradients_of(streams, 2.0)[0].tolist() == [2.0] * 3


def test_what_another_function_has_counted_is_left_to_it(streams):
    streams.uses[PARAMETER] = [VIEW] * 2
    (gradient,) = streams.accumulate((ParameterUse(PARAMETER, False),), (torch.ones(3),))
    assert gradient.tolist() == [1.0] * 3
    assert not streams.partial_sums


@pytest.mark.parametrize(
    ("views", "waits"),
    [
        ([VIEW], True),
        ([None], True),
        ([VIEW, VIEW], True),
        ([VIEW, TRANSPOSED], False),
        ([VIEW, None], False),
    ],
)
def test_a_gradient_can_wait_unless_autograd_itself_adds_to_it(streams, views, deferred):
    streams.uses[PARAMETER] = views
    assert streams.may_defer(PARAMETER) == deferred


def test_what_cannot_wait_is_handed_on_at_once(streams):
    streams.uses[PARAMETER] = [VIEW, None]
    assert [gradient is not None for gradient in gradients_of(streams, 1.0, 2.0)] == [True, True]
