"""What a model is asked: a field at once, frame after frame, at any time, or from observations of it.

Axes: B batch, N points, C channels, T frames, K observations, U updates of the weights for one batch.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int64
from pydantic import Field, PositiveInt
from torch import Tensor

from linearno.core.config import Config
from linearno.core.errors import UserError, brief
from linearno.core.randomness import torch_generator
from linearno.core.registry import Registry
from linearno.data.field_data import FieldData
from linearno.data.sample import Batch, FieldSpec
from linearno.data.sensor_sampling import draw_observed, observed_count
from linearno.nn import roll_out

Fields = Float[Tensor, "B N C"]
Ask = Callable[[Batch], Tensor]  # a batch in physical units → the model's answer, one call
Drawn = Int64[Tensor, "K"] | None  # observed points, or a frame for each sample
Draws = Int64[Tensor, "U K"] | None
IN_TEST, IN_TRAINING, OF_MESH = 1, 2, 3  # places of what is drawn, beside that of the order of samples


class Task(Config):
    """The outputs from the inputs, at the same points and in one call."""

    name: str = "direct"

    @property
    def metric(self) -> str | None:
        """The error that this task is judged by, a name in METRICS; None: the benchmark's first one."""
        return None

    @property
    def provides(self) -> frozenset[str]:
        """What a call of the model gets from this task, beyond the fields of the data."""
        return frozenset()

    @property
    def frame(self) -> int | None:
        """Channels of a frame, where the outputs are frames."""
        return None

    @property
    def draws_each(self) -> bool:
        """Whether what is drawn has an entry for each sample, instead of being shared by the batch."""
        return False

    def spec(self, spec: FieldSpec) -> FieldSpec:
        """What one call of the model takes and gives, for data described by `spec`; an error if none can."""
        return spec

    def require_packed(self, data: FieldData) -> None:
        """An error if the data have meshes of different sizes and this task cannot ask of them."""
        if data.offsets is not None and self.name != "direct":
            raise UserError(f"task={self.name} takes meshes of one size, these differ; use task=direct")

    def example(self, data: Batch, spec: FieldSpec) -> Batch:
        """Calls to take the statistics of a scaler from."""
        return data

    def draw(self, points: int, *place: int) -> Drawn:
        """What is drawn anew for every batch: by its place, a seed and more numbers, alone."""
        return None

    def draws(self, targets: tuple[int, ...], *place: int) -> Draws:
        """What is drawn for each update that a batch with targets (B, N, C) makes; None: one and nothing."""
        drawn = self.draw(targets[1], *place)
        return None if drawn is None else drawn[None]

    def call(self, batch: Batch, drawn: Drawn = None) -> Batch:
        """What one call of the model sees of these samples, to look into it."""
        return batch

    def train(self, ask: Ask, batch: Batch, drawn: Drawn) -> tuple[Fields, Batch]:
        """What the loss sees: predictions, and the batch that holds the truth for each."""
        return ask(batch), batch

    def test(self, ask: Ask, batch: Batch, drawn: Drawn) -> Fields:
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

    @property
    def frame(self) -> int | None:
        return self.channels

    def spec(self, spec: FieldSpec) -> FieldSpec:
        for part, names in (("inputs", spec.inputs), ("outputs", spec.outputs)):
            if not names or len(names) % self.channels:
                raise UserError(
                    f"task=rollout: {len(names)} {part} are not frames of {self.channels} channels; "
                    "set task.channels, or take data that march in time"
                )
        return spec.model_copy(update={"outputs": spec.outputs[: self.channels]})

    def example(self, data: Batch, spec: FieldSpec) -> Batch:
        return self.windows(data) if spec.standardised else data

    def windows(self, batch: Batch) -> Batch:
        """Every step of a rollout with the true frames before it: (B, T) of them as one batch."""
        assert batch.inputs is not None
        channels, history = self.channels, batch.inputs.shape[-1]
        frames = torch.cat([batch.inputs, batch.targets], dim=-1)
        window = frames.unfold(-1, history + channels, channels).transpose(1, 2).flatten(0, 1)  # (B·T) N C
        steps = _repeated(batch._replace(inputs=None), len(window) // len(frames))
        return steps._replace(inputs=window[..., :history], targets=window[..., history:])

    def train(self, ask: Ask, batch: Batch, drawn: Drawn) -> tuple[Fields, Batch]:
        if self.forcing == "teacher":
            steps = self.windows(batch)
            return ask(steps), steps
        prediction = self._roll(ask, batch, detach=self.forcing == "pushforward")
        frames = _repeated(batch._replace(inputs=None), batch.targets.shape[-1] // self.channels)
        truth = frames._replace(targets=apart(batch.targets, self.channels))
        return apart(prediction, self.channels), truth

    def test(self, ask: Ask, batch: Batch, drawn: Drawn) -> Fields:
        return self._roll(ask, batch)

    def _roll(self, ask: Ask, batch: Batch, *, detach: bool = False) -> Fields:
        assert batch.inputs is not None

        def next_frame(frames: Tensor) -> Tensor:
            return ask(batch._replace(inputs=frames, targets=batch.targets[..., : self.channels]))

        return roll_out(next_frame, batch.inputs, batch.targets.shape[-1] // self.channels, detach=detach)


class Timed(Task):
    """A frame from the inputs and its time, from 0 for the first to 1 for the last one.

    Outputs of the data are frames.

    `updates` of the weights, in training:
    frame   one for each frame, of a batch in which every sample has its frames in an order of its own
            (published); the schedule moves once for all of them
    batch   one for all frames of a batch, which are as many samples: fewer updates, and faster
    """

    name: Literal["timed"] = "timed"
    channels: PositiveInt = 1  # of one frame
    updates: Literal["frame", "batch"] = "frame"

    @property
    def frame(self) -> int | None:
        return self.channels

    @property
    def draws_each(self) -> bool:
        return True

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"time"})

    def spec(self, spec: FieldSpec) -> FieldSpec:
        if len(spec.outputs) % self.channels or len(spec.outputs) < 2 * self.channels:
            raise UserError(
                f"task=timed: {len(spec.outputs)} outputs are not frames of {self.channels} channels, two or "
                "more; set task.channels, or take data that change in time"
            )
        return spec.model_copy(update={"outputs": spec.outputs[: self.channels], "position_outputs": ()})

    def example(self, data: Batch, spec: FieldSpec) -> Batch:
        return self.every_frame(data) if "outputs" in spec.standardised else data

    def draws(self, targets: tuple[int, ...], *place: int) -> Draws:
        """In each row a frame for every sample; in the rows together each sample has all its frames."""
        if self.updates == "batch":
            return None
        samples, frames, generator = targets[0], targets[2] // self.channels, torch_generator(*place)
        return torch.stack([torch.randperm(frames, generator=generator) for _ in range(samples)], dim=1)

    def call(self, batch: Batch, drawn: Drawn = None) -> Batch:
        """The last frame."""
        return batch._replace(time=batch.targets.new_ones(len(batch.targets), 1))

    def every_frame(self, batch: Batch) -> Batch:
        """Every sample at every time: (B, T) of them as one batch."""
        frames = batch.targets.shape[-1] // self.channels
        time = torch.linspace(0, 1, frames, device=batch.targets.device, dtype=batch.targets.dtype)
        return _repeated(batch, frames)._replace(
            targets=apart(batch.targets, self.channels), time=time.repeat(len(batch.targets))[:, None]
        )

    def train(self, ask: Ask, batch: Batch, drawn: Drawn) -> tuple[Fields, Batch]:
        if drawn is None:
            asked = self.every_frame(batch)
        else:
            frames = batch.targets.unflatten(-1, (-1, self.channels))  # B N T c
            some = frames[torch.arange(len(drawn), device=drawn.device), :, drawn]
            time = drawn[:, None].to(frames.dtype) / (frames.shape[2] - 1)
            asked = batch._replace(targets=some, time=time)
        return ask(asked), asked

    def test(self, ask: Ask, batch: Batch, drawn: Drawn) -> Fields:
        answers = ask(self.every_frame(batch)).unflatten(0, (len(batch.targets), -1))  # B T N c
        return answers.transpose(1, 2).flatten(2)


class Completion(Task):
    """The whole field from its values at some points, drawn anew for every batch and shared by it."""

    name: Literal["completion"] = "completion"
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.2  # of the points, observed

    @property
    def metric(self) -> str | None:
        return "relative_mae"

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"points"})

    def spec(self, spec: FieldSpec) -> FieldSpec:
        if spec.inputs:
            raise UserError(f"task=completion observes the outputs; these data also have {spec.inputs}")
        if spec.points is not None:
            observed_count(spec.points, self.ratio)
        scaled = (*spec.standardised, "inputs") if "outputs" in spec.standardised else spec.standardised
        names = tuple(f"{name} observed" for name in spec.outputs)
        return spec.model_copy(update={"inputs": names, "standardised": scaled})

    def example(self, data: Batch, spec: FieldSpec) -> Batch:
        return data._replace(inputs=data.targets)

    def draw(self, points: int, *place: int) -> Drawn:
        return draw_observed(points, self.ratio, generator=torch_generator(*place))

    def train(self, ask: Ask, batch: Batch, drawn: Drawn) -> tuple[Fields, Batch]:
        return self.test(ask, batch, drawn), batch

    def call(self, batch: Batch, drawn: Drawn = None) -> Batch:
        """Observations at the `drawn` points; the whole field is to be predicted."""
        assert drawn is not None
        return Batch(
            coords=batch.coords[:, drawn],
            inputs=batch.targets[:, drawn],
            targets=batch.targets,
            points=batch.coords,
        )

    def test(self, ask: Ask, batch: Batch, drawn: Drawn) -> Fields:
        return ask(self.call(batch, drawn))


def _repeated(batch: Batch, times: int) -> Batch:
    """Every sample repeated `times` times in a row, without its targets."""
    return batch._replace(targets=batch.targets[..., :0]).repeat(times)


def apart(frames: Fields, channels: int) -> Float[Tensor, "BT N c"]:
    """Frames side by side as so many samples: a norm is taken of each."""
    return frames.unflatten(-1, (-1, channels)).transpose(1, 2).flatten(0, 1)


TASKS: Registry[type[Task]] = Registry("task")
TASKS.register("direct")(Task)
TASKS.register("rollout")(Rollout)
TASKS.register("timed")(Timed)
TASKS.register("completion")(Completion)


def make_task(values: dict[str, Any] | None) -> Task:
    """The task that a card or a configuration describes."""
    values = values or {}
    name = values.get("name", "direct")
    if not isinstance(name, str):
        raise UserError(f"task.name: expected a name, got {brief(name)}")
    return TASKS[name].make(values)
