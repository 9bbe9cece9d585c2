"""Theorem 1: linear attention on random points is a Monte Carlo integral."""

from linearno.reproduce.theorem1 import theorem1


def test_a_layer_nears_its_integral_operator_at_the_rate_of_monte_carlo():
    result = theorem1(sizes=tuple(2**k for k in range(6, 13)), draws=24)
    assert abs(result.slope + 0.5) < 0.04, result
    assert result.errors[-1] < result.errors[0] / 6
