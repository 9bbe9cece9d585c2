"""What a model is asked: a field at once, frame after frame, or from observations of it.

Axes: B batch, N points, C channels, T frames, K observations.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int64
from pydantic import Field, PositiveInt
from torch import Tensor

from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.core.registry import Registry
from linearno.data.observe import draw_observed, observed_count
from linearno.data.sample import FieldSpec, Sample
from linearno.metrics import relative_l2, relative_mae
from linearno.nn import roll_out

Fields = Float[Tensor, "B N C"]
Ask = Callable[[Sample], Tensor]  # a batch in physical units → the model's answer, one call
Drawn = Int64[Tensor, "K"] | None
IN_TEST, IN_TRAINING = 1, 2  # places of what is drawn, beside that of the order of samples
METRICS = {"relative_l2": relative_l2, "relative_mae": relative_mae}
WORDS = {"relative_l2": "relative L2", "relative_mae": "relative MAE"}


class Task(Config):
    """The outputs from the inputs, at the same points and in one call."""

    name: str = "direct"

    @property
    def metric(self) -> str:
        """The error by which this task is judged: a name in METRICS."""
        return "relative_l2"

    def spec(self, spec: FieldSpec) -> FieldSpec:
        """What one call of the model takes and gives, for data described by `spec`; an error if none can."""
        return spec

    def example(self, data: Sample, spec: FieldSpec) -> Sample:
        """Calls to take the statistics of a scaler from."""
        return data

    def draw(self, points: int, *place: int) -> Drawn:
        """What is drawn anew for every batch: by its place, a seed and more numbers, alone."""
        return None

    def train(self, ask: Ask, batch: Sample, drawn: Drawn) -> tuple[Fields, Fields]:
        """What the loss compares: predictions, and the truth for each."""
        return ask(batch), batch.targets

    def test(self, ask: Ask, batch: Sample, drawn: Drawn) -> Fields:
        """The prediction for all targets, without a look at them."""
        return ask(batch)


class Rollout(Task):
    """The next frame from the last ones, again and again. Inputs and outputs of the data are frames.

    In a test every prediction is fed back. In training `forcing` says what follows a step:
    teacher      the true frame (published); then all inputs are known, and all frames are one batch
    pushforward  the prediction, without a gradient through it
    none         the prediction, with the gradient through the whole rollout
    """

    name: Literal["rollout"] = "rollout"
    forcing: Literal["teacher", "pushforward", "none"] = "teacher"
    channels: PositiveInt = 1  # of one frame

    def spec(self, spec: FieldSpec) -> FieldSpec:
        for part, names in (("inputs", spec.inputs), ("outputs", spec.outputs)):
            if not names or len(names) % self.channels:
                raise UserError(
                    f"task=rollout: {len(names)} {part} are not frames of {self.channels} channels; "
                    "set task.channels, or take data that march in time"
                )
        return spec.model_copy(update={"outputs": spec.outputs[: self.channels]})

    def example(self, data: Sample, spec: FieldSpec) -> Sample:
        return self.windows(data) if spec.scaled else data

    def windows(self, batch: Sample) -> Sample:
        """Every step of a rollout with the true frames before it: (B, T) of them as one batch."""
        assert batch.inputs is not None
        channels, history = self.channels, batch.inputs.shape[-1]
        frames = torch.cat([batch.inputs, batch.targets], dim=-1)
        window = frames.unfold(-1, history + channels, channels).transpose(1, 2).flatten(0, 1)  # (B·T) N C
        steps = len(window) // len(frames)
        coords = batch.coords[:, None].expand(-1, steps, -1, -1).flatten(0, 1)
        return Sample(coords, window[..., :history], window[..., history:])

    def train(self, ask: Ask, batch: Sample, drawn: Drawn) -> tuple[Fields, Fields]:
        if self.forcing == "teacher":
            steps = self.windows(batch)
            return ask(steps), steps.targets
        prediction = self._roll(ask, batch, detach=self.forcing == "pushforward")
        return self._apart(prediction), self._apart(batch.targets)

    def test(self, ask: Ask, batch: Sample, drawn: Drawn) -> Fields:
        return self._roll(ask, batch)

    def _roll(self, ask: Ask, batch: Sample, *, detach: bool = False) -> Fields:
        assert batch.inputs is not None

        def next_frame(frames: Tensor) -> Tensor:
            return ask(batch._replace(inputs=frames, targets=batch.targets[..., : self.channels]))

        return roll_out(next_frame, batch.inputs, batch.targets.shape[-1] // self.channels, detach=detach)

    def _apart(self, frames: Fields) -> Float[Tensor, "BT N c"]:
        """Frames side by side as so many samples: a norm is taken of each."""
        return frames.unflatten(-1, (-1, self.channels)).transpose(1, 2).flatten(0, 1)


class Completion(Task):
    """The whole field from its values at some points, drawn anew for every batch and shared by it."""

    name: Literal["completion"] = "completion"
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.2  # of the points, observed

    @property
    def metric(self) -> str:
        return "relative_mae"

    def spec(self, spec: FieldSpec) -> FieldSpec:
        if spec.inputs:
            raise UserError(f"task=completion observes the outputs; these data also have {spec.inputs}")
        if spec.points is not None:
            observed_count(spec.points, self.ratio)
        scaled = (*spec.scaled, "inputs") if "outputs" in spec.scaled else spec.scaled
        names = tuple(f"{name} observed" for name in spec.outputs)
        return spec.model_copy(update={"inputs": names, "scaled": scaled})

    def example(self, data: Sample, spec: FieldSpec) -> Sample:
        return data._replace(inputs=data.targets)

    def draw(self, points: int, *place: int) -> Drawn:
        return draw_observed(points, self.ratio, generator=torch_generator(*place))

    def train(self, ask: Ask, batch: Sample, drawn: Drawn) -> tuple[Fields, Fields]:
        return self.test(ask, batch, drawn), batch.targets

    def test(self, ask: Ask, batch: Sample, drawn: Drawn) -> Fields:
        assert drawn is not None
        return ask(
            Sample(
                coords=batch.coords[:, drawn],
                inputs=batch.targets[:, drawn],
                targets=batch.targets,
                points=batch.coords,
            )
        )


TASKS: Registry[type[Task]] = Registry("task")
TASKS.register("direct")(Task)
TASKS.register("rollout")(Rollout)
TASKS.register("completion")(Completion)


def make_task(values: dict[str, Any] | None) -> Task:
    """The task that a card or a configuration describes."""
    values = values or {}
    return TASKS[values.get("name", "direct")].make(values)
