"""Nested dissection on the cells of C-grids against a dense solver."""

import pytest
import torch

from linearno.solvers.linalg import cell_dissection
from linearno.solvers.linalg.c_grid_elimination import StencilBlocks
from linearno.solvers.linalg.cell_dissection import (
    factor_numbers,
    factorise_by_dissection,
    plan_dissection,
    replace_factors,
    select_factors,
    solve_by_dissection,
)

ALONG, OUTWARD, WAKE = 14, 6, 3


def system(unknowns, batch=2):
    """Blocks of a random matrix, and the matrix."""
    torch.manual_seed(0)
    parts = [torch.randn(batch, ALONG, OUTWARD, unknowns, unknowns, dtype=torch.float64) for _ in range(5)]
    own, before, after, below, above = parts
    own += 10 * torch.eye(unknowns)
    before[:, 0], after[:, -1], above[:, :, -1], below[:, WAKE : ALONG - WAKE, 0] = 0, 0, 0, 0
    matrix = torch.zeros(batch, ALONG, OUTWARD, unknowns, ALONG, OUTWARD, unknowns, dtype=torch.float64)
    for i in range(ALONG):
        for j in range(OUTWARD):
            across = (i, j - 1) if j else (ALONG - 1 - i, 0)
            around = ((i, j), (i - 1, j), (i + 1, j), across, (i, j + 1))
            for (a, b), part in zip(around, parts, strict=True):
                if 0 <= a < ALONG and b < OUTWARD:
                    matrix[:, i, j, :, a, b] += part[:, i, j]
    size = ALONG * OUTWARD * unknowns
    return StencilBlocks(*parts), matrix.view(batch, size, size)


@pytest.mark.parametrize("unknowns", [2, 3, 4])
def test_dissection_agrees_with_a_dense_solver(unknowns, monkeypatch):
    monkeypatch.setattr(cell_dissection, "LEAF_CELLS", 4)
    plan_dissection.cache_clear()
    blocks, matrix = system(unknowns)
    right = torch.randn(2, ALONG, OUTWARD, unknowns, dtype=torch.float64)
    expected = torch.linalg.solve(matrix, right.flatten(1)).view(right.shape)
    torch.testing.assert_close(solve_by_dissection(factorise_by_dissection(blocks, WAKE), right), expected)


def test_factors_of_a_part_of_the_batch_are_replaced():
    blocks, _ = system(3, batch=3)
    right = torch.randn(3, ALONG, OUTWARD, 3, dtype=torch.float64)
    factors = factorise_by_dissection(blocks, WAKE)
    index = torch.tensor([2, 0])
    doubled = StencilBlocks(*(2 * part[index] for part in blocks))
    before = solve_by_dissection(factors, right)
    replace_factors(factors, index, factorise_by_dissection(doubled, WAKE))
    after = solve_by_dissection(factors, right)
    torch.testing.assert_close(after, before * torch.tensor([0.5, 1, 0.5])[:, None, None, None])
    selected = select_factors(factors, torch.tensor([1]))
    torch.testing.assert_close(solve_by_dissection(selected, right[1:2]), before[1:2])


def test_every_cell_is_eliminated_once():
    for along, outward, wake in ((14, 6, 3), (32, 14, 6), (128, 48, 24)):
        plan = plan_dissection(along, outward, wake, torch.device("cpu"))
        cells = torch.cat([group.eliminated.flatten() for group in plan])
        assert torch.equal(cells.sort()[0], torch.arange(along * outward))
        assert not plan[-1].remaining.numel()


def test_factors_are_as_large_as_stated():
    blocks, _ = system(3)
    factors = factorise_by_dissection(blocks, WAKE)
    stored = sum(part.numel() for front in factors.fronts for part in front)
    assert stored == 2 * factor_numbers(factors.plan, 3)
