"""Latent spectral model and U-FNO: the U-Net that both have, and attention within patches."""

import pytest
import torch

from linearno.core.errors import UserError
from linearno.models.lsm import LSM, NeuralSpectralBlock
from linearno.models.u_fno import UFNO
from linearno.nn.unet import UNet


@pytest.mark.parametrize(("grid", "patch"), [((6, 4), (3, 2)), ((4, 2, 6), (2, 1, 3))])
def test_patches_are_put_back_where_they_were(grid, patch):
    block = NeuralSpectralBlock(4, 2, 3, 2, patch)
    image = torch.randn(2, 4, *grid)
    patches = block._patches(image)
    assert patches.shape == (2 * 2 ** len(grid), 2, torch.Size(patch).numel(), 2)
    assert torch.equal(block._image(patches, image.shape), image)
    corner = image[(0, slice(None), *map(slice, patch))].flatten(1)
    assert torch.equal(patches[0].transpose(0, 1).flatten(1).T, corner)


def test_a_patch_does_not_see_the_others():
    block = NeuralSpectralBlock(4, 2, 3, 2, (3, 2)).double()
    for weight in block.parameters():
        torch.nn.init.normal_(weight)
    image = torch.randn(1, 4, 6, 4, dtype=torch.float64)
    changed = image.clone()
    changed[..., 3:, 2:] += 1
    same = block(image) == block(changed)
    assert same[..., :3, :].all()
    assert same[..., :2].all()
    assert not same[..., 3:, 2:].any()


def test_tokens_are_mapped_by_sines_and_cosines():
    block = NeuralSpectralBlock(4, 2, 3, 2, (3, 2))
    torch.nn.init.normal_(block.coefficients)
    tokens = torch.randn(1, 2, 3, 2)
    found = block._mapped(tokens)[0, 1, 2, 0]  # channel 2 of 4
    t, a = tokens[0, 1, 2, 0], block.coefficients[2]
    expected = t + a[0] * 0 + a[1] * torch.sin(torch.pi / 2 * t) + a[2] + a[3] * torch.cos(torch.pi / 2 * t)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("axes", [2, 3])
def test_a_u_net_sees_the_whole_grid_and_keeps_its_size(axes):
    net = UNet(2, axes, "instance")
    image = torch.randn(1, 2, *[32, 16, 16][:axes], requires_grad=True)
    out = net(image)
    assert out.shape == image.shape
    out[:, :, 0].sum().backward()
    assert image.grad[:, :, -1].abs().max() > 0


def test_small_grids_are_refused_where_norms_have_no_statistics():
    sizes = {"coords": 2, "inputs": 0, "outputs": 1, "grid": (9, 9), "width": 4}
    for model in (UFNO, LSM):
        settings = {"heads": 2} if model is LSM else {"modes": 2}
        with pytest.raises(UserError, match="norm=instance needs more than 16 points along some axis"):
            model(**sizes, **settings, norm="instance")
        built = model(**sizes, **settings)
        assert built(torch.rand(2, 81, 2)).shape == (2, 81, 1)
        with pytest.raises(UserError, match=r"trained with two samples at least: set training\.batch=2"):
            built(torch.rand(1, 81, 2))
        assert built.eval()(torch.rand(1, 81, 2)).shape == (1, 81, 1)
    with pytest.raises(UserError, match=r"a U-Net needs a grid of 2 or 3 axes, got \(16,\)"):
        UFNO(coords=1, outputs=1, grid=(16,), width=4, modes=2)
    with pytest.raises(UserError, match="width=9 is not a multiple of heads=2; the next is 10"):
        LSM(coords=2, outputs=1, grid=(32, 32), width=9, heads=2)


def test_only_the_last_layers_of_a_u_fno_have_a_u_net():
    model = UFNO(coords=2, outputs=1, grid=(20, 20), width=4, modes=2, depth=3, unets=1)
    assert [layer.branch is not None for layer in model.network] == [False, False, True]
    with pytest.raises(UserError, match="unets=4: there are only depth=3 layers"):
        UFNO(coords=2, outputs=1, grid=(20, 20), width=4, modes=2, depth=3, unets=4)


AUTHORS = {  # benchmark: sizes, width, and the number of parameters in the authors' repository
    "airfoil": ({"inputs": 0, "grid": (221, 51)}, {"width": 32, "append": "grid"}, 4_812_833),
    "pipe": ({"inputs": 0, "grid": (129, 129)}, {"width": 48, "append": "grid"}, 10_804_913),
    "darcy": ({"inputs": 1, "grid": (85, 85)}, {"width": 64}, 19_187_457),
    "ns": ({"inputs": 10, "grid": (64, 64)}, {"width": 64}, 19_188_033),
}


@pytest.mark.parametrize("benchmark", AUTHORS)
def test_the_authors_form_has_the_published_number_of_parameters(benchmark):
    sizes, settings, expected = AUTHORS[benchmark]
    with torch.device("meta"):
        model = LSM(coords=2, outputs=1, **sizes, lift_layers=1, head_width=128, **settings)
    assert sum(weight.numel() for weight in model.parameters()) == expected
