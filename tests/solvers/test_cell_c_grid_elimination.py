"""Elimination on the cells of C-grids against a dense solver."""

import pytest
import torch

from linearno.solvers.linalg import column_elimination
from linearno.solvers.linalg.c_grid_elimination import StencilBlocks
from linearno.solvers.linalg.cell_c_grid_elimination import (
    factorise_cells,
    replace_factors,
    select_factors,
    solve_cells,
)

ALONG, OUTWARD, WAKE = 8, 3, 2


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
def test_elimination_agrees_with_a_dense_solver(unknowns, monkeypatch):
    monkeypatch.setattr(column_elimination, "MAX_INVERTED_ROWS", 8)
    blocks, matrix = system(unknowns)
    right = torch.randn(2, ALONG, OUTWARD, unknowns, dtype=torch.float64)
    expected = torch.linalg.solve(matrix, right.flatten(1)).view(right.shape)
    torch.testing.assert_close(solve_cells(factorise_cells(blocks), right), expected)


def test_factors_of_a_part_of_the_batch_are_replaced():
    blocks, _ = system(3, batch=3)
    right = torch.randn(3, ALONG, OUTWARD, 3, dtype=torch.float64)
    factors = factorise_cells(blocks)
    index = torch.tensor([2, 0])
    doubled = StencilBlocks(*(2 * part[index] for part in blocks))
    before = solve_cells(factors, right)
    replace_factors(factors, index, factorise_cells(doubled))
    after = solve_cells(factors, right)
    torch.testing.assert_close(after, before * torch.tensor([0.5, 1, 0.5])[:, None, None, None])
    selected = select_factors(factors, torch.tensor([1]))
    torch.testing.assert_close(solve_cells(selected, right[1:2]), before[1:2])
