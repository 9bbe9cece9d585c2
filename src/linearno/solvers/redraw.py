"""Random samples of which a few cannot be solved: those are drawn again."""

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
    """Fields of a sample for each generator, with `draws` (B,): the number of the draw that was solved.

    Args:
        rngs: a generator for each of the B samples.
        solve: draws the samples with these indices, each from its own generator, and returns their fields and
            which of them are solved.
        max_draws: of a sample, before a SampleError.
        problem: what fails, for messages, with {} in place of a number of samples.
    """
    fields: Fields = {"draws": np.zeros(len(rngs))}
    left = np.arange(len(rngs))
    for draw in range(1, max_draws + 1):
        found, solved = solve(left.tolist())
        for name, values in found.items():
            fields.setdefault(name, np.empty((len(rngs), *values.shape[1:]), values.dtype))[left] = values
        fields["draws"][left] = draw
        count, left = len(left), left[~solved]
        if not len(left):
            return fields
        remedy = "; drawn again" if draw < max_draws else ""
        log.warning("%s at draw %d%s", problem.format(f"{len(left)} of {count}"), draw, remedy)
    raise SampleError(int(left[0]), f"{problem.format(f'{max_draws} random')} one after the other")
