"""Whitened features have the covariance 1, and the running covariance is a mean over batches."""

import pytest
import torch

from linearno.nn.whitening import JITTERS, NEW_SHARE, Whitening, covariance_of, inverse_factor


def features(*shape):
    torch.manual_seed(0)
    p = torch.randn(shape, dtype=torch.float64)
    return p @ torch.randn(shape[-1], shape[-1], dtype=torch.float64)


def test_features_of_a_training_batch_are_orthonormal():
    whitening = Whitening(5).double().train()
    phi, covariance = whitening(features(2, 33, 5))
    torch.testing.assert_close(covariance_of(phi), torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(covariance, covariance_of(features(2, 33, 5)))


def test_padded_points_have_no_part_in_the_covariance():
    p, mask = features(2, 33, 5), torch.arange(33) < torch.tensor([33, 9])[:, None]
    own = torch.cat([p[0], p[1, :9]])
    torch.testing.assert_close(covariance_of(p, mask), own.mT @ own / 42)


def test_the_running_covariance_starts_with_the_first_batch_and_takes_a_tenth_of_each_further():
    whitening = Whitening(5).double().train()
    first, second = (covariance_of(features(1, points, 5)) for points in (33, 20))
    whitening.update(first)
    torch.testing.assert_close(whitening.covariance, first)
    whitening.update(second)
    expected = (1 - NEW_SHARE) * first + NEW_SHARE * second
    torch.testing.assert_close(whitening.covariance, expected)
    p = features(1, 20, 5)
    phi, none = whitening.eval()(p)
    assert none is None
    torch.testing.assert_close(phi, p @ torch.linalg.inv(torch.linalg.cholesky(expected)).mT)


def test_before_the_first_batch_evaluation_leaves_features_as_they_are():
    p = features(1, 7, 5)
    assert torch.equal(Whitening(5).double().eval()(p)[0], p)


@pytest.mark.parametrize("rank", [1, 4])
def test_a_singular_covariance_is_factorised_with_the_least_jitter_that_suffices(rank):
    half = torch.randn(5, rank)
    covariance = (half @ half.mT).requires_grad_()
    factor = inverse_factor(covariance, torch.tensor(JITTERS))
    assert factor.isfinite().all()
    assert torch.autograd.grad(factor.sum(), covariance)[0].isfinite().all()
    regular = torch.eye(5)
    assert torch.equal(inverse_factor(regular, torch.tensor(JITTERS)), regular)
