"""From a design to fields: prediction, spread, solution, trust. Axes: N points, C channels, R runs."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.core.log_capture import captured_warnings
from linearno.nn.protocol import Probabilistic
from linearno.studio.designs import Design, SampleDesign
from linearno.studio.runs import StudioRun
from linearno.studio.trust import DesignGuard, Verdict, features_of, training_features, verdict

Values = Float[ndarray, "N C"]

log = logging.getLogger(__name__)


@dataclass
class Fields:
    """What is known of one design.

    Args:
        prediction: outputs of the surrogate.
        seconds: time of the prediction.
        warnings: what the surrogate logged.
        truth: true outputs, or those of the solver.
        truth_name: "truth" or "solver".
        solver_seconds: time of the solver.
        std: standard deviation of the outputs.
        std_name: where it comes from.
    """

    prediction: Values
    seconds: float
    warnings: list[str] = field(default_factory=list)
    truth: Values | None = None
    truth_name: str = "truth"
    solver_seconds: float | None = None
    std: Values | None = None
    std_name: str = ""

    @property
    def relative_error(self) -> float | None:
        """Relative L2 error of the prediction, if the truth is known."""
        if self.truth is None:
            return None
        known = np.isfinite(self.truth)
        size = float(np.sqrt((self.truth[known] ** 2).sum()))
        return float(np.sqrt(((self.prediction - self.truth)[known] ** 2).sum())) / size if size else None


def predict(run: StudioRun, design: Design) -> Values:
    """Outputs of a run on a design."""
    bundle = run.bundle
    if bundle is None:
        raise UserError(run.training or "this run has no model yet")
    if isinstance(design, SampleDesign):
        found = bundle.predict_data(design.sample())
        return (found if found.dim() == 2 else found[0]).numpy()
    inputs, coords = design.inputs(), design.coords()
    shared = bundle.coords is not None and bundle.coords.shape == coords.shape
    own = None if shared and np.array_equal(bundle.coords.numpy(), coords) else coords  # type: ignore[union-attr]
    return np.asarray(
        bundle.predict(None if inputs is None else inputs[None], own if own is None else own[None])[0]
    )


def compute(run: StudioRun, design: Design) -> Fields:
    """Prediction and, where it is known, the truth."""
    began = time.perf_counter()
    with captured_warnings() as warnings:
        values = predict(run, design)
    seconds = time.perf_counter() - began
    if not np.isfinite(values).any():
        raise UserError("the prediction has no finite values: this design is far outside the training range")
    return Fields(values, seconds, list(dict.fromkeys(warnings)), truth=design.truth())


def solve(design: Design) -> tuple[Values, float]:
    """Outputs of the solver and its time; errors of one line."""
    began = time.perf_counter()
    try:
        values = design.solve()
    except UserError:
        raise
    except (ArithmeticError, ValueError, RuntimeError) as error:
        log.debug("the solver failed", exc_info=True)
        raise UserError(f"the solver has no solution for this design ({type(error).__name__})") from None
    return values, time.perf_counter() - began


def spread(runs: Sequence[StudioRun], run: StudioRun, design: Design) -> tuple[Values, str] | None:
    """Standard deviation of the model, else of the runs on the same problem; None without either."""
    bundle = run.bundle
    if bundle is None:
        return None
    if isinstance(bundle.model, Probabilistic) and bundle.task.name == "direct":
        inputs, coords = design.inputs(), design.coords()
        shared = bundle.coords is not None and bundle.coords.shape == coords.shape
        _, std = bundle.predict_with_std(
            None if inputs is None else inputs[None], None if shared and inputs is not None else coords[None]
        )
        return np.asarray(std[0]), "standard deviation of the model"
    others = [other for other in runs if other.bundle is not None and other.key == run.key]
    if len(others) < 2:
        return None
    values = np.stack([predict(other, design) for other in others])
    return values.std(axis=0, ddof=1), f"standard deviation of {len(others)} runs"


class TrustModel:
    """The guard of a run, fitted to its training data at first use."""

    def __init__(self, run: StudioRun):
        self._run = run
        self._guard: DesignGuard | None = None
        self.message: str | None = None
        self._own_points = False
        splits = run.splits()
        if splits is None:
            self.message = (
                f"The training data are not here, so only parameters are checked: {run.data_message}"
            )
            return
        features = training_features(splits.train)
        if features is None:
            self.message = "The meshes differ in size, so only numbers of the cases are checked."
            return
        self._own_points = splits.train.coords.dim() == 3
        self._guard = DesignGuard.fit(features)

    def verdict(self, design: Design, fields: Fields) -> Verdict:
        """Score and sentences for a design."""
        score = None
        if self._guard is not None:
            features = features_of(design.coords(), design.inputs(), own_points=self._own_points)
            score = self._guard.score(features) if features.shape == self._guard.mean.shape else None
        return verdict(score, [*design.warnings(), *fields.warnings])
