"""Which gradients of weights may be made beside the others, and how those of several uses become one.

That the streams themselves lose nothing is tested with whole models, on a GPU.
"""

import pytest
import torch

from linearno.ops.side_streams import Side, Use

LEAF, OTHER = 1, 2
VIEW, TURNED = (torch.Size([3]), (1,)), (torch.Size([3]), (2,))


@pytest.fixture
def side(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    return Side(torch.device("cuda"))


def gradients_of(side, *values):
    """What each use in turn hands on of its gradient for LEAF."""
    return [side.add((Use(LEAF, True),), (torch.full((3,), value),))[0] for value in values]


def test_of_a_parameter_used_several_times_the_last_use_hands_on_the_sum(side):
    side.uses[LEAF] = [VIEW] * 3
    *before, last = gradients_of(side, 1.0, 10.0, 100.0)
    assert before == [None, None]
    assert last.tolist() == [111.0] * 3
    assert not side.waiting


def test_of_a_parameter_used_once_the_gradient_is_handed_on_as_it_is(side):
    side.uses[LEAF] = [VIEW]
    assert gradients_of(side, 2.0)[0].tolist() == [2.0] * 3


def test_what_another_function_has_counted_is_left_to_it(side):
    side.uses[LEAF] = [VIEW] * 2
    (gradient,) = side.add((Use(LEAF, False),), (torch.ones(3),))
    assert gradient.tolist() == [1.0] * 3
    assert not side.waiting


@pytest.mark.parametrize(
    ("views", "waits"),
    [([VIEW], True), ([None], True), ([VIEW, VIEW], True), ([VIEW, TURNED], False), ([VIEW, None], False)],
)
def test_a_gradient_can_wait_unless_autograd_itself_adds_to_it(side, views, waits):
    side.uses[LEAF] = views
    assert side.can_wait(LEAF) == waits


def test_what_cannot_wait_is_handed_on_at_once(side):
    side.uses[LEAF] = [VIEW, None]
    assert [gradient is not None for gradient in gradients_of(side, 1.0, 2.0)] == [True, True]
