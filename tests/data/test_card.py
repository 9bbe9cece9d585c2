import json

import numpy as np
import pytest

from linearno.data.generation.card import card_problems

HOW = "do this"


def change(path, edit) -> None:
    array = np.load(path)
    edit(array)
    np.save(path, array)


def test_an_untouched_set_has_no_problems(made):
    assert card_problems(made, "darcy", how=HOW) == []


def test_the_set_of_another_benchmark_is_reported(made):
    (line,) = card_problems(made, "pipe", how=HOW)
    assert line == f"{made} holds the set darcy, not pipe; give the folder of pipe"


def test_a_missing_a_truncated_and_a_changed_file_get_a_line_each(made):
    (made / "train_coeff.npy").unlink()
    whole = (made / "train_sol.npy").read_bytes()
    (made / "train_sol.npy").write_bytes(whole[:-100])
    change(made / "test_sol.npy", lambda u: u.__setitem__((0, 5, 5), 1.0))
    missing, truncated, changed = card_problems(made, "darcy", how=HOW)
    assert "train_coeff.npy does not exist; do this" in missing
    assert "train_sol.npy is truncated" in truncated
    assert "test_sol.npy" in changed
    assert "sha256 differs" in changed


def test_a_file_of_another_shape_is_reported_with_both_shapes(made):
    np.save(made / "test_sol.npy", np.zeros((2, 9, 9), np.float32))
    (line,) = card_problems(made, "darcy", how=HOW)
    assert "(2, 9, 9)" in line
    assert "(2, 11, 11)" in line


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_reported_with_file_and_sample(made, bad):
    change(made / "train_sol.npy", lambda u: u.__setitem__((3, 0, 0), bad))
    (line,) = card_problems(made, "darcy", how=HOW)
    assert "train_sol.npy: sample 3 has NaN or infinite values" in line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not valid JSON"),
        ("[]", "has format None"),
        ('{"format": 99}', "has format 99; this version reads 1"),
        ('{"format": 1}', "name: field required"),
    ],
)
def test_a_broken_card_is_reported_in_one_line(made, text, complaint):
    (made / "card.json").write_text(text)
    (line,) = card_problems(made, "darcy", how=HOW)
    assert complaint in line
    assert line.endswith(HOW)


def test_the_card_is_plain_json(made):
    card = json.loads((made / "card.json").read_text())
    assert len(card["files"]["train_sol.npy"]["sha256"]) == 64
