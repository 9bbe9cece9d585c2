"""A whole training step (forward, loss, backward, clip, optimiser): ours beside a textbook write-up."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.attention import OURS, candidate_name, of_ceilings, others
from benchmarks.kernel_times import parts_us
from benchmarks.plain_model import plain_twin
from benchmarks.timing import Candidate, Ceilings, Effort, Work, compete, graphed
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
    """What a step is made of. Times do not depend on the fields' values, so they are random."""

    name: str
    spec: FieldSpec
    points: int
    model: ModelConfig
    training: TrainingConfig
    recipe: str | None = None
    flops: int | None = None  # of one forward pass for one sample
    alone: bool = False  # too large for the write-up
    task: Task = field(default_factory=Task)

    def batch(self, device: torch.device) -> Batch:
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
        asked = self.task.spec(self.spec)
        return Scaler.fit(asked, self.task.scaling_batch(batch, asked))


def bench_step(
    case: StepCase,
    device: torch.device,
    precisions: Sequence[Precision],
    *,
    compiled: bool,
    effort: Effort | None = None,
    ceilings: Ceilings | None = None,
) -> Record:
    """Time one step of every candidate; the record's value is ours in the first precision, in ms.

    The write-up runs as a textbook has it (fp32, AdamW), and with `compiled` in each of `precisions` through
    torch.compile with a fused AdamW; on CUDA the latter also as a replayed graph.
    """
    torch.compiler.reset()  # a process that compiles many shapes would else fall back to eager in silence
    ours = candidate_name(OURS, precisions[0])
    entries = dict(_entries(case, device, precisions, compiled=compiled))
    results = compete(entries, device, effort, required=ours)
    value = results.times[ours].median
    least = 3.0 * case.training.batch * (case.flops or 0)  # the backward pass costs two forward passes
    details = {
        "shape": {"batch": case.training.batch, "points": case.points},
        "model": case.model.model_dump(mode="json"),
        "ours": ours,
        **({} if case.alone else {"largest_relative_difference": disagreement(case, device)}),
        **results.facts(),
        "parts": parts_us(results.ready[ours].work, device),
        **(of_ceilings((least, None), value, precisions[0], ceilings) if case.flops else {}),
    }
    return new_record(
        f"bench/step/{case.name}",
        value,
        "ms",
        device=device,
        against=others(results),
        recipe=case.recipe,
        details=details,
    )


def our_step(
    case: StepCase, device: torch.device, precision: Precision, *, capture: bool | None = None
) -> Work:
    """One step of the trainer that `fit` runs, to be called repeatedly."""
    batch = case.batch(device)
    changes = {"precision": precision, "accumulate": 1, "schedule": "constant"}
    config = case.training.model_copy(update=changes | ({} if capture is None else {"capture": capture}))
    data = FieldData(case.spec, batch.coords, batch.inputs, batch.targets)
    setup = TrainingSetup(case.build(device), case.scaler(batch), data, config, task=case.task)
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
    """The same step written with PyTorch alone around the textbook model, from the same weights."""
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

    def loss_of(coords: Tensor, inputs: Tensor | None, targets: Tensor) -> Tensor:
        seen, truth = case.task.training_pairs(Batch(coords, inputs, targets), None)
        out = model(scaler.coords.encode(seen.coords), scaler.encode_inputs(seen.inputs))
        return loss_fn(scaler.outputs.decode(out.to(seen.targets.dtype)), truth)

    measure = cast(Callable[..., Tensor], torch.compile(loss_of, dynamic=False) if compiled else loss_of)

    def work() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            loss = measure(batch.coords, batch.inputs, batch.targets)
        loss.backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()

    return graphed(work, device) if graph else work


def disagreement(case: StepCase, device: torch.device) -> float:
    """The largest difference of the two networks with the same weights, relative to the largest value."""
    model, batch = case.build(device), case.batch(device)
    with torch.no_grad():
        ours, plain = (network(batch.coords, batch.inputs) for network in (model, plain_twin(model)))
    return ((ours - plain).abs().max() / plain.abs().max()).item()


def _entries(
    case: StepCase, device: torch.device, precisions: Sequence[Precision], *, compiled: bool
) -> Iterator[tuple[str, Callable[[], Candidate]]]:
    """Name and builder of each candidate."""
    for precision in precisions:
        yield candidate_name(OURS, precision), partial(_ours, case, device, precision)
    if not case.alone:
        yield candidate_name("plain", "fp32"), partial(_plain, case, device, "fp32")
    if case.alone or not compiled:
        return
    for precision in precisions:
        for graph in (False, True) if device.type == "cuda" else (False,):
            name = candidate_name("plain", precision, compiled=True, graph=graph)
            yield name, partial(_plain, case, device, precision, compiled=True, graph=graph)


def _ours(case: StepCase, device: torch.device, precision: Precision) -> Candidate:
    set_matmul_precision(precision)
    work = our_step(case, device, precision)
    if device.type != "cuda" or not case.training.capture:
        return Candidate(work, precision)
    eager = our_step(case, device, precision, capture=False)
    return Candidate(work, precision, replay=True, eager=eager)


def _plain(
    case: StepCase, device: torch.device, precision: Precision, *, compiled: bool = False, graph: bool = False
) -> Candidate:
    set_matmul_precision(precision)  # a graph is captured here and now
    work = plain_step(case, device, precision, compiled=compiled, graph=graph)
    return Candidate(work, precision, replay=graph)
