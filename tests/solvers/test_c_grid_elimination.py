"""Elimination column by column against a dense solver, and the small inverses that it needs."""

import pytest
import torch

from linearno.solvers.linalg import c_grid_elimination


@pytest.fixture
def small_inverse():
    pytest.importorskip("triton")
    from linearno.solvers.linalg.batched_inverse import small_inverse

    return small_inverse


@pytest.mark.parametrize("cut", [0, 2])
def test_elimination_by_columns_agrees_with_a_dense_solver(cut, monkeypatch):
    monkeypatch.setattr(c_grid_elimination, "MAX_INVERTED_ROWS", 8)
    torch.manual_seed(0)
    i, j = 7, 3
    parts = [torch.randn(2, i, j, 4, 4, dtype=torch.float64) for _ in range(5)]
    parts[0] += 20 * torch.eye(4, dtype=torch.float64)
    number = torch.arange(i * j).view(i, j)
    number[i - cut :, 0] = number[:cut, 0].flip(0)
    matrix = torch.zeros(2, i * j, i * j, 4, 4, dtype=torch.float64)
    for a in range(i):
        for b in range(j):
            neighbours = ((a, b), (a - 1, b), (a + 1, b), (a, b - 1), (a, b + 1))
            for (c, d), part in zip(neighbours, parts, strict=True):
                if 0 <= c < i and 0 <= d < j:
                    matrix[:, number[a, b], number[c, d]] += part[:, a, b]
    right = torch.randn(2, i * j, 4, dtype=torch.float64)[:, number]
    used = number.unique()
    dense = matrix[:, used][:, :, used].transpose(2, 3).reshape(2, 4 * len(used), -1)
    first = [int((number == at).nonzero()[0] @ torch.tensor([j, 1])) for at in used]
    solution = torch.linalg.solve(dense, right.flatten(1, 2)[:, first].flatten(1))
    spring = 1e7 * torch.eye(4, dtype=torch.float64).expand(2, i, j, 4, 4)
    found = c_grid_elimination.solve(
        c_grid_elimination.factorise(c_grid_elimination.StencilBlocks(*parts), spring, cut), right
    )
    torch.testing.assert_close(found.flatten(1, 2)[:, first].flatten(1), solution, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 20, 52, 64])
def test_the_kernel_inverts_to_the_rounding_of_a_backward_stable_elimination(rows, small_inverse):
    """With pivots the error is that of rounding the matrix, κ(A) · 2⁻²⁴, times a small number; measured below
    one, as of LAPACK."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # there by Triton's interpreter
    matrices = torch.randn(3, rows + 1, rows + 2, device=device)[:, 1:, 2:]  # a part of larger ones
    true = torch.linalg.inv(matrices.double())
    error = (small_inverse(matrices).double() - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)
    assert (error < 4 * 2**-24 * torch.linalg.cond(matrices.double())).all()


def test_a_matrix_without_an_inverse_spoils_no_other(small_inverse):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    matrices = torch.eye(5, device=device).repeat(3, 1, 1)
    matrices[1, 2] = matrices[1, 3]
    found = small_inverse(matrices)
    assert torch.equal(found[::2], matrices[::2])
    assert not found[1].isfinite().all()
