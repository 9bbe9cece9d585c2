"""Time a training step (forward, loss, backward, clipping, optimiser) against plain PyTorch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.attention import OURS, candidate_name, ceiling_fractions, peer_medians
from benchmarks.kernel_times import kernel_times
from benchmarks.plain_model import plain_twin
from benchmarks.timing import Candidate, Ceilings, TimingSettings, Work, capture_graph, time_candidates
from linearno.core.device import Precision, autocast, set_matmul_precision
from linearno.data import Batch, FieldData, FieldSpec, Scaler
from linearno.models import build_model
from linearno.nn import ModelConfig
from linearno.reproduce.records import Record, new_record
from linearno.training import Task, TrainingConfig, TrainingSetup
from linearno.training.losses import make_loss
from linearno.training.trainer import Trainer


@dataclass(frozen=True)
class StepCase:
    """Model, data sizes and training settings of one step; the fields are random.

    Args:
        name: last part of the record's id.
        spec: channels of the data.
        points: number of points N of a sample.
        model: settings of the model.
        training: batch size, optimiser and other training settings.
        recipe: name of the recipe, if there is one.
        flops: FLOPs of one forward pass of one sample.
        linearno_only: skip the plain implementation, which would run out of memory.
        task: training task, such as a rollout.
    """

    name: str
    spec: FieldSpec
    points: int
    model: ModelConfig
    training: TrainingConfig
    recipe: str | None = None
    flops: int | None = None
    linearno_only: bool = False
    task: Task = field(default_factory=Task)

    def batch(self, device: torch.device) -> Batch:
        """Random fields of one batch."""
        generator = torch.Generator().manual_seed(0)

        def draw(fields: tuple[str, ...]) -> Tensor:
            size = (self.training.batch, self.points, len(fields))
            return torch.rand(size, generator=generator).to(device)

        inputs = draw(self.spec.inputs) if self.spec.inputs else None
        return Batch(draw(self.spec.coords), inputs, draw(self.spec.outputs))

    def build(self, device: torch.device) -> nn.Module:
        torch.manual_seed(0)
        return build_model(self.model, self.task.spec(self.spec)).to(device)

    def scaler(self, batch: Batch) -> Scaler:
        spec = self.task.spec(self.spec)
        return Scaler.fit(spec, self.task.scaling_batch(batch, spec))


def bench_step(
    case: StepCase,
    device: torch.device,
    precisions: Sequence[Precision],
    *,
    compiled: bool,
    settings: TimingSettings | None = None,
    ceilings: Ceilings | None = None,
) -> Record:
    """Time one step of every candidate; the record's value is the time of linearno in ms.

    The plain implementation runs eagerly in fp32 with AdamW; with `compiled` also in each precision with
    torch.compile and a fused AdamW, on CUDA also as a CUDA graph. Arguments: see `bench_attention`.
    """
    torch.compiler.reset()  # without it, torch.compile silently runs eagerly after a few shapes
    ours = candidate_name(OURS, precisions[0])
    builders = dict(_candidate_builders(case, device, precisions, compiled=compiled))
    results = time_candidates(builders, device, settings, required=ours)
    value = results.times[ours].median
    step_flops = 3.0 * case.training.batch * (case.flops or 0)  # the backward pass costs two forward passes
    details = {
        "shape": {"batch": case.training.batch, "points": case.points},
        "model": case.model.model_dump(mode="json"),
        "ours": ours,
        **({} if case.linearno_only else {"largest_relative_difference": relative_difference(case, device)}),
        **results.as_dict(),
        "parts": kernel_times(results.candidates[ours].work, device),
        **(ceiling_fractions((step_flops, None), value, precisions[0], ceilings) if case.flops else {}),
    }
    return new_record(
        f"bench/step/{case.name}",
        value,
        "ms",
        device=device,
        against=peer_medians(results),
        recipe=case.recipe,
        details=details,
    )


def our_step(
    case: StepCase,
    device: torch.device,
    precision: Precision,
    *,
    capture: bool | None = None,
    compiled: bool = False,
) -> Work:
    """One step of the trainer used by `fit`, as a function to call repeatedly.

    `capture` replaces the setting of the recipe; with `compiled` the model is compiled by torch.compile.
    """
    batch = case.batch(device)
    changes = {"precision": precision, "accumulate": 1, "schedule": "constant"}
    config = case.training.model_copy(update=changes | ({} if capture is None else {"capture": capture}))
    data = FieldData(case.spec, batch.coords, batch.inputs, batch.targets)
    model = case.build(device)
    if compiled:
        model.compile(dynamic=False)
    setup = TrainingSetup(model, case.scaler(batch), data, config, task=case.task)
    trainer, index = Trainer(setup, device), torch.arange(config.batch, device=device)
    trainer.state.model.train()

    def work() -> None:
        trainer.state.step = 0
        with trainer.active():
            trainer.step(index)

    return work


def plain_step(
    case: StepCase, device: torch.device, precision: Precision, *, compiled: bool = False, graph: bool = False
) -> Work:
    """The same step in plain PyTorch with the plain model, starting from the same weights."""
    model, batch, config = plain_twin(case.build(device)), case.batch(device), case.training
    scaler, loss_fn = case.scaler(batch).to(device), make_loss(config.loss, case.spec.grid)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=compiled or None,
        capturable=graph,
    )

    def compute_loss(coords: Tensor, inputs: Tensor | None, targets: Tensor) -> Tensor:
        batch, truth = case.task.training_pairs(Batch(coords, inputs, targets), None)
        out = model(scaler.coords.encode(batch.coords), scaler.encode_inputs(batch.inputs))
        return loss_fn(scaler.outputs.decode(out.to(batch.targets.dtype)), truth)

    loss_of_batch = torch.compile(compute_loss, dynamic=False) if compiled else compute_loss
    loss_of_batch = cast(Callable[..., Tensor], loss_of_batch)

    def work() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            loss = loss_of_batch(batch.coords, batch.inputs, batch.targets)
        loss.backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()

    return capture_graph(work, device) if graph else work


def relative_difference(case: StepCase, device: torch.device) -> float:
    """Largest difference of the outputs of linearno and plain model, relative to the largest value."""
    model, batch = case.build(device), case.batch(device)
    with torch.no_grad():
        ours, plain = (network(batch.coords, batch.inputs) for network in (model, plain_twin(model)))
    return ((ours - plain).abs().max() / plain.abs().max()).item()


def _candidate_builders(
    case: StepCase, device: torch.device, precisions: Sequence[Precision], *, compiled: bool
) -> Iterator[tuple[str, Callable[[], Candidate]]]:
    """Name and builder of each candidate."""
    for precision in precisions:
        yield candidate_name(OURS, precision), partial(_linearno_candidate, case, device, precision)
    if not case.linearno_only:
        yield candidate_name("plain", "fp32"), partial(_plain_candidate, case, device, "fp32")
    if case.linearno_only or not compiled:
        return
    for precision in precisions:
        for graph in (False, True) if device.type == "cuda" else (False,):
            name = candidate_name("plain", precision, compiled=True, graph=graph)
            yield name, partial(_plain_candidate, case, device, precision, compiled=True, graph=graph)


def _linearno_candidate(case: StepCase, device: torch.device, precision: Precision) -> Candidate:
    set_matmul_precision(precision)
    work = our_step(case, device, precision)
    if device.type != "cuda" or not case.training.capture:
        return Candidate(work, precision)
    eager = our_step(case, device, precision, capture=False)
    return Candidate(work, precision, replay=True, eager=eager)


def _plain_candidate(
    case: StepCase, device: torch.device, precision: Precision, *, compiled: bool = False, graph: bool = False
) -> Candidate:
    set_matmul_precision(precision)  # capture below uses the current setting
    work = plain_step(case, device, precision, compiled=compiled, graph=graph)
    return Candidate(work, precision, replay=graph)
