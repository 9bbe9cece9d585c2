"""Tasks: how samples become model calls. A field at once, frame by frame, at any time, or from sensors.

Axes: B batch, N points, C channels, T frames, K observations, U weight updates for one batch.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

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
Predictor = Callable[[Batch], Tensor]  # one model call: a batch in physical units → predictions (B, N, C)
Drawn = Int64[Tensor, "K"] | None  # observed points, or a frame for each sample
Draws = Int64[Tensor, "U K"] | None
TEST_STREAM, TRAINING_STREAM, POINTS_STREAM = 1, 2, 3  # spawn keys; shuffling uses (seed, epoch)


class Task(Config):
    """Predict the outputs from the inputs, at the same points and in one model call."""

    name: str = "direct"
    metric: ClassVar[str | None] = None  # name in METRICS of the first error; None: the benchmark's own
    provides: ClassVar[frozenset[str]] = frozenset()  # model arguments that come from this task
    per_sample_draw: ClassVar[bool] = False  # a draw has one entry per sample; otherwise the batch shares it

    @property
    def frame(self) -> int | None:
        """Channels of a frame, if the outputs are frames."""
        return None

    @property
    def unrolls(self) -> bool:
        """Whether training needs several model calls for one batch; see `unroll`."""
        return False

    def spec(self, spec: FieldSpec) -> FieldSpec:
        """Inputs and outputs of one model call on data described by `spec`; an error if there are none."""
        return spec

    def require_packed(self, data: FieldData) -> None:
        """Refuse meshes of different sizes, which only the direct task takes."""
        if data.offsets is not None and self.name != "direct":
            raise UserError(f"task={self.name} takes meshes of one size, these differ; use task=direct")

    def scaling_batch(self, data: Batch, spec: FieldSpec) -> Batch:
        """The model calls whose statistics the scaler is fitted to."""
        return data

    def draw(self, points: int, *key: int) -> Drawn:
        """The random choice for one batch, from the key alone: a seed and further numbers."""
        return None

    def draws(self, shape: tuple[int, ...], *key: int) -> Draws:
        """The random choice for each weight update of a batch with targets of `shape` (B, N, C).

        None: one update without a choice.
        """
        drawn = self.draw(shape[1], *key)
        return None if drawn is None else drawn[None]

    def probe_batch(self, batch: Batch, drawn: Drawn = None) -> Batch:
        """One model call of this batch, for inspection."""
        return batch

    def training_pairs(self, batch: Batch, drawn: Drawn) -> tuple[Batch, Batch]:
        """The batch that the model sees, and the batch that the loss compares its prediction with."""
        return batch, batch

    def unroll(self, predictor: Predictor, batch: Batch) -> Fields:
        """The training prediction of a task that `unrolls`."""
        raise NotImplementedError

    def predict(self, predictor: Predictor, batch: Batch, drawn: Drawn) -> Fields:
        """The prediction of all targets, made without them."""
        return predictor(batch)


class Rollout(Task):
    """Predict the next frame from the last ones, repeatedly. Inputs and outputs of the data are frames.

    In a test every prediction is fed back. In training `forcing` chooses what is fed back:
    teacher      the true frame (published); all inputs are known, so all frames form one batch
    pushforward  the prediction, without a gradient through it
    none         the prediction, with the gradient through the whole rollout
    """

    name: Literal["rollout"] = "rollout"
    forcing: Literal["teacher", "pushforward", "none"] = "teacher"
    channels: PositiveInt = 1  # of one frame

    @property
    def frame(self) -> int | None:
        return self.channels

    @property
    def unrolls(self) -> bool:
        return self.forcing != "teacher"

    def spec(self, spec: FieldSpec) -> FieldSpec:
        for part, names in (("inputs", spec.inputs), ("outputs", spec.outputs)):
            if not names or len(names) % self.channels:
                raise UserError(
                    f"task=rollout: {len(names)} {part} are not frames of {self.channels} channels; "
                    "set task.channels, or take data that march in time"
                )
        return spec.model_copy(update={"outputs": spec.outputs[: self.channels]})

    def scaling_batch(self, data: Batch, spec: FieldSpec) -> Batch:
        return self.windows(data) if spec.standardised else data

    def windows(self, batch: Batch) -> Batch:
        """Every step of a rollout with the true frames before it: (B·T) samples in one batch."""
        assert batch.inputs is not None
        channels, history = self.channels, batch.inputs.shape[-1]
        frames = torch.cat([batch.inputs, batch.targets], dim=-1)
        window = frames.unfold(-1, history + channels, channels).transpose(1, 2).flatten(0, 1)  # (B·T) N C
        steps = _repeated(batch._replace(inputs=None), len(window) // len(frames))
        return steps._replace(inputs=window[..., :history], targets=window[..., history:])

    def training_pairs(self, batch: Batch, drawn: Drawn) -> tuple[Batch, Batch]:
        if not self.unrolls:
            steps = self.windows(batch)
            return steps, steps
        frames = _repeated(batch._replace(inputs=None), batch.targets.shape[-1] // self.channels)
        return batch, frames._replace(targets=frames_as_batch(batch.targets, self.channels))

    def unroll(self, predictor: Predictor, batch: Batch) -> Fields:
        frames = self._march(predictor, batch, detach=self.forcing == "pushforward")
        return frames_as_batch(frames, self.channels)

    def predict(self, predictor: Predictor, batch: Batch, drawn: Drawn) -> Fields:
        return self._march(predictor, batch)

    def _march(self, predictor: Predictor, batch: Batch, *, detach: bool = False) -> Fields:
        assert batch.inputs is not None

        def next_frame(frames: Tensor) -> Tensor:
            return predictor(batch._replace(inputs=frames, targets=batch.targets[..., : self.channels]))

        return roll_out(next_frame, batch.inputs, batch.targets.shape[-1] // self.channels, detach=detach)


class Timed(Task):
    """Time-conditioned prediction: a frame from the inputs and its time, 0 for the first to 1 for the last.

    Outputs of the data are frames. `updates` of the weights, in training:
    frame   one for each frame; each sample of a batch takes its frames in a random order (published), and the
            schedule advances once for all of them
    batch   one for all frames of a batch, as further samples: fewer updates, and faster
    """

    name: Literal["timed"] = "timed"
    channels: PositiveInt = 1  # of one frame
    updates: Literal["frame", "batch"] = "frame"
    provides = frozenset({"time"})
    per_sample_draw = True

    @property
    def frame(self) -> int | None:
        return self.channels

    def spec(self, spec: FieldSpec) -> FieldSpec:
        if len(spec.outputs) % self.channels or len(spec.outputs) < 2 * self.channels:
            raise UserError(
                f"task=timed: {len(spec.outputs)} outputs are not frames of {self.channels} channels, two or "
                "more; set task.channels, or take data that change in time"
            )
        return spec.model_copy(update={"outputs": spec.outputs[: self.channels], "position_outputs": ()})

    def scaling_batch(self, data: Batch, spec: FieldSpec) -> Batch:
        return self.every_frame(data) if "outputs" in spec.standardised else data

    def draws(self, shape: tuple[int, ...], *key: int) -> Draws:
        """(T, B): a frame for every sample in each row, and all frames of a sample in each column."""
        if self.updates == "batch":
            return None
        samples, frames, generator = shape[0], shape[2] // self.channels, torch_generator(*key)
        return torch.stack([torch.randperm(frames, generator=generator) for _ in range(samples)], dim=1)

    def probe_batch(self, batch: Batch, drawn: Drawn = None) -> Batch:
        """The last frame."""
        return batch._replace(time=batch.targets.new_ones(len(batch.targets), 1))

    def every_frame(self, batch: Batch) -> Batch:
        """Every sample at every time: (B·T) samples in one batch."""
        frames = batch.targets.shape[-1] // self.channels
        time = torch.linspace(0, 1, frames, device=batch.targets.device, dtype=batch.targets.dtype)
        return _repeated(batch, frames)._replace(
            targets=frames_as_batch(batch.targets, self.channels),
            time=time.repeat(len(batch.targets))[:, None],
        )

    def training_pairs(self, batch: Batch, drawn: Drawn) -> tuple[Batch, Batch]:
        if drawn is None:
            pairs = self.every_frame(batch)
        else:
            frames = batch.targets.unflatten(-1, (-1, self.channels))  # B N T c
            chosen = frames[torch.arange(len(drawn), device=drawn.device), :, drawn]
            time = drawn[:, None].to(frames.dtype) / (frames.shape[2] - 1)
            pairs = batch._replace(targets=chosen, time=time)
        return pairs, pairs

    def predict(self, predictor: Predictor, batch: Batch, drawn: Drawn) -> Fields:
        frames = predictor(self.every_frame(batch)).unflatten(0, (len(batch.targets), -1))  # B T N c
        return frames.transpose(1, 2).flatten(2)


class Completion(Task):
    """Field reconstruction: the whole field from its values at sensor points, drawn anew for every batch."""

    name: Literal["completion"] = "completion"
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.2  # of the points, observed
    metric = "relative_mae"
    provides = frozenset({"points"})

    def spec(self, spec: FieldSpec) -> FieldSpec:
        if spec.inputs:
            raise UserError(f"task=completion observes the outputs; these data also have {spec.inputs}")
        if spec.points is not None:
            observed_count(spec.points, self.ratio)
        scaled = (*spec.standardised, "inputs") if "outputs" in spec.standardised else spec.standardised
        names = tuple(f"{name} observed" for name in spec.outputs)
        return spec.model_copy(update={"inputs": names, "standardised": scaled})

    def scaling_batch(self, data: Batch, spec: FieldSpec) -> Batch:
        return data._replace(inputs=data.targets)

    def draw(self, points: int, *key: int) -> Drawn:
        return draw_observed(points, self.ratio, generator=torch_generator(*key))

    def probe_batch(self, batch: Batch, drawn: Drawn = None) -> Batch:
        """Observations at the `drawn` points; the whole field is to be predicted."""
        assert drawn is not None
        return Batch(
            coords=batch.coords[:, drawn],
            inputs=batch.targets[:, drawn],
            targets=batch.targets,
            points=batch.coords,
        )

    def training_pairs(self, batch: Batch, drawn: Drawn) -> tuple[Batch, Batch]:
        return self.probe_batch(batch, drawn), batch

    def predict(self, predictor: Predictor, batch: Batch, drawn: Drawn) -> Fields:
        return predictor(self.probe_batch(batch, drawn))


def _repeated(batch: Batch, times: int) -> Batch:
    """Every sample `times` times in a row, without its targets."""
    return batch._replace(targets=batch.targets[..., :0]).repeat(times)


def frames_as_batch(frames: Fields, channels: int) -> Float[Tensor, "BT N c"]:
    """(B, N, T·c) → (B·T, N, c): each frame becomes a sample with a separate norm."""
    return frames.unflatten(-1, (-1, channels)).transpose(1, 2).flatten(0, 1)


TASKS: Registry[type[Task]] = Registry("task")
TASKS.register("direct")(Task)
TASKS.register("rollout")(Rollout)
TASKS.register("timed")(Timed)
TASKS.register("completion")(Completion)


def make_task(values: dict[str, Any] | None) -> Task:
    """The task described by a bundle's card or a configuration."""
    values = values or {}
    name = values.get("name", "direct")
    if not isinstance(name, str):
        raise UserError(f"task.name: expected a name, got {brief(name)}")
    return TASKS[name].make(values)
