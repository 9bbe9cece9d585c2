"""Solve random samples; draw samples again that cannot be solved."""

import logging
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from linearno.core.errors import SampleError

Fields = dict[str, ndarray]  # arrays of several samples by name, samples first

log = logging.getLogger(__name__)


def solve_with_redraws(
    rngs: Sequence[np.random.Generator],
    solve: Callable[[list[int]], tuple[Fields, Bool[ndarray, "b"]]],
    *,
    max_draws: int,
    problem: str,
) -> Fields:
    """Fields of a sample for each generator, with `draws` (B,), the draw that was solved.

    Args:
        rngs: a generator for each of the B samples.
        solve: draws the samples with these indices, each from its own generator, and returns their fields and
            which of them are solved.
        max_draws: draws per sample before a SampleError.
        problem: message for failures, with {} for the number of samples.
    """
    fields: Fields = {"draws": np.zeros(len(rngs))}
    unsolved = np.arange(len(rngs))
    for draw in range(1, max_draws + 1):
        solution, solved = solve(unsolved.tolist())
        for name, values in solution.items():
            fields.setdefault(name, np.empty((len(rngs), *values.shape[1:]), values.dtype))[unsolved] = values
        fields["draws"][unsolved] = draw
        count, unsolved = len(unsolved), unsolved[~solved]
        if not len(unsolved):
            return fields
        remedy = "; drawn again" if draw < max_draws else ""
        log.warning("%s at draw %d%s", problem.format(f"{len(unsolved)} of {count}"), draw, remedy)
    raise SampleError(int(unsolved[0]), f"{problem.format(f'{max_draws} random')} in a row")
