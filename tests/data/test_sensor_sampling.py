import pytest
import torch

from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.data import draw_observed, observed_count


@pytest.mark.parametrize(
    ("ratio", "count"), [(0.2, 1638), (0.1, 819), (0.05, 409), (0.01, 81), (0.005, 40), (1.0, 8192)]
)
@pytest.mark.parametrize("generator", [None, torch_generator(0)])
def test_the_published_ratios_of_the_published_points(ratio, count, generator):
    drawn = draw_observed(8192, ratio, generator=generator)
    assert observed_count(8192, ratio) == len(drawn) == count
    assert len(drawn.unique()) == count  # without replacement
    assert 0 <= drawn.min() <= drawn.max() < 8192


def test_every_point_is_observed_equally_often():
    generator, draws = torch_generator(0), 4000
    drawn = torch.cat([draw_observed(20, 0.25, generator=generator) for _ in range(draws)])
    expected, deviation = draws / 4, (draws * 0.25 * 0.75) ** 0.5
    assert (drawn.bincount() - expected).abs().max() < 5 * deviation


def test_the_generator_decides_the_points_and_each_draw_is_another():
    one, same = (torch_generator(3, 1) for _ in range(2))
    first, second = (draw_observed(100, 0.5, generator=one) for _ in range(2))
    assert torch.equal(draw_observed(100, 0.5, generator=same, device=torch.device("cpu")), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.001, float("nan")])
def test_a_part_that_is_none_or_more_than_all_is_refused(ratio):
    with pytest.raises(UserError, match="above 0 and at most 1"):
        draw_observed(100, ratio)


@pytest.mark.parametrize("points", [1, 3, 100, 7225, 8192])
def test_a_ratio_that_observes_nothing_is_reported_with_one_that_does(points):
    with pytest.raises(UserError, match="leaves none to observe; give ") as told:
        draw_observed(points, 0.9 / points)
    least = float(str(told.value).split("give ")[1].split()[0])
    assert len(draw_observed(points, least)) == 1


def test_no_points_are_refused():
    with pytest.raises(UserError, match="at least one point"):
        draw_observed(0, 0.5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_generator_gives_the_same_points_on_a_gpu():
    device = torch.device("cuda")
    here, there = (draw_observed(100, 0.3, generator=torch_generator(0), device=d) for d in (None, device))
    assert torch.equal(here, there.cpu())
    assert draw_observed(100, 0.3, device=device).device.type == "cuda"
