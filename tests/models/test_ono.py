"""What only ONO does."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.models.ono import ONO
from linearno.ops.ragged import offsets_of

SIZES = {"coords": 2, "inputs": 1, "outputs": 1, "width": 16, "depth": 2, "heads": 2, "landmarks": 8}


def tiny(**more):
    torch.manual_seed(0)
    model = ONO(**SIZES | {"eigenfunctions": 3} | more)
    for weight in model.parameters():
        if weight.dim() > 1:  # as drawn they are so small that differences drown in rounding
            torch.nn.init.normal_(weight, std=0.3)
    return model.double()


def points(*shape):
    torch.manual_seed(1)
    return torch.rand(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 18, "heads": 4}, "width=18 is not a multiple of heads=4; the next that is: 20"),
        ({"attention": "softmax"}, "attention: .*'nystrom'"),
        ({"eigenfunctions": 0}, "eigenfunctions: input should be greater than 0"),
        ({"landmarks": 0}, "landmarks: input should be greater than 0"),
        ({"form": "new"}, "form: .*'library' or 'original'"),
    ],
)
def test_settings_that_make_no_model_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as error:
        ONO(**SIZES | settings)
    assert "\n" not in str(error.value)


def test_inputs_that_do_not_fit_are_refused_in_one_line():
    with pytest.raises(UserError, match="takes 3 features a point, got 2: 2 coordinates and 0 inputs"):
        tiny()(points(2, 7, 2))
    with pytest.raises(UserError, match="this model takes a time input"):
        tiny(time=True)(points(2, 7, 2), points(2, 7, 1))


def test_recomputed_blocks_have_the_same_gradients_and_count_a_batch_once():
    coords, inputs, found = points(2, 9, 2), points(2, 9, 1), []
    for recompute in (False, True):
        model = tiny().train()
        model.recompute = recompute
        out = model(coords, inputs)
        gradients = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        whitening = model.blocks[0].whitening
        assert whitening.batches == 1
        found.append((out, gradients, whitening.covariance))
    torch.testing.assert_close(*found)


def test_after_a_batch_evaluation_repeats_what_training_gave_for_it():
    model, coords, inputs = tiny().train(), points(2, 9, 2), points(2, 9, 1)
    expected = model(coords, inputs)
    torch.testing.assert_close(model.eval()(coords, inputs), expected)
    assert torch.equal(model(coords, inputs), model(coords, inputs))
    assert model.blocks[0].whitening.batches == 1


@pytest.mark.parametrize("attention", ["nystrom", "efficient", "galerkin", "normalised"])
def test_packed_meshes_are_computed_as_each_by_itself(attention):
    model, sizes = tiny(attention=attention).eval(), [5, 1, 24]
    coords, inputs = points(1, 30, 2), points(1, 30, 1)
    parts = zip(coords.split(sizes, dim=1), inputs.split(sizes, dim=1), strict=True)
    apart = torch.cat([model(x, a) for x, a in parts], dim=1)
    torch.testing.assert_close(model(coords, inputs, segments=offsets_of(sizes)), apart)


def test_the_time_joins_the_solution_alone():
    model = tiny(time=True).eval()
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda module, given: seen.append(given[:2]))
    for time in (0.0, 1.0):
        model(points(1, 9, 2), points(1, 9, 1), time=torch.full((1, 1), time, dtype=torch.float64))
    (x, f), (x_later, f_later) = seen
    assert torch.equal(x, x_later)
    assert not torch.allclose(f, f_later)


def test_the_kernel_of_a_block_is_an_average_over_products_of_eigenfunctions():
    """f gains φ diag(softplus μ) Σₙ φₙᵀ fₙ: with one eigenfunction a rank-one update."""
    model = tiny(eigenfunctions=1).eval()
    block = model.blocks[0]
    x, f = torch.randn(1, 9, 16, dtype=torch.float64), torch.randn(1, 9, 16, dtype=torch.float64)
    seen = []
    block.norm_out.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    features, _, _ = block(x, f)
    phi = block.project(features)  # the covariance is 1 before training
    scale = torch.nn.functional.softplus(block.raw_eigenvalues)
    torch.testing.assert_close(seen[0], f + scale * phi * (phi * f).sum(dim=1, keepdim=True))
