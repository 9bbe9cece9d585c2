"""One run on several processes: each takes its share of every batch, and all keep the same weights.

With `shards` so many processes together take a share, each some of the points of its samples (`ops.sharded`).

The gradients are summed in one buffer after the last backward pass of a step, instead of by
`DistributedDataParallel`: that one takes the mean over processes, which is wrong where a batch does not
divide evenly, and renames the weights. Without a process group everything here does nothing.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from linearno.core.device import resolve_device
from linearno.core.errors import UserError
from linearno.core.randomness import torch_generator
from linearno.data.field_data import FieldData
from linearno.training.interrupt import Interrupted

log = logging.getLogger(__name__)
CountUp = Callable[[str], int]
TIMEOUT = timedelta(minutes=10)  # a process that does not answer for so long ends the others


@contextmanager
def processes(device: str) -> Iterator[torch.device]:
    """Join the processes that `torchrun` started, and give this one its device; without any, just that.

    A message that several processes have for the user is given by the first of them only.
    """
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        yield resolve_device(device)
        return
    count_up = _start(device)
    try:
        yield _own_device(device)
    except UserError as error:  # the group stays: to close it takes all processes, and others may be at work
        _exit_if_said(str(error), count_up, code=2)
        raise
    except Interrupted as stop:
        dist.destroy_process_group()
        _exit_if_said(str(stop), count_up, code=128 + stop.signal)
        raise
    dist.destroy_process_group()


def _start(device: str) -> CountUp:
    """Start the process group; the answer counts how often all processes together used a key."""
    backend = "cpu:gloo,cuda:nccl" if device != "cpu" and torch.cuda.is_available() else "gloo"
    try:
        meeting = dist.rendezvous("env://", timeout=TIMEOUT)  # type: ignore[attr-defined]  # not in its stubs
        store, rank, count = next(meeting)
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot join the other processes ({reason}); start them with torchrun") from None
    if rank == 0:
        log.info("%d processes share every batch (%s)", count, backend)
    return lambda key: store.add(f"linearno/{key}", 1)


def _exit_if_said(message: str, count_up: CountUp, *, code: int) -> None:
    try:
        said = count_up(hashlib.sha256(message.encode()).hexdigest()) > 1
    except RuntimeError:  # who kept the count is gone
        return
    if said:
        time.sleep(1)  # torchrun ends all at the first exit: let the message come out before
        raise SystemExit(code)


def _own_device(name: str) -> torch.device:
    """`cuda:LOCAL_RANK` on CUDA: a GPU for each process."""
    device = resolve_device(name)
    if device.type != "cuda":
        return device
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", size())), torch.cuda.device_count()
    if device.index is not None:
        raise UserError(f"device {name!r} is one GPU for {here} processes; use --device cuda, one for each")
    if here > gpus:
        raise UserError(f"{here} processes need as many GPUs, this machine has {gpus}; start fewer processes")
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank())))
    torch.cuda.set_device(own)
    return own


def size() -> int:
    return dist.get_world_size() if _joined() else 1


def rank() -> int:
    return dist.get_rank() if _joined() else 0


def is_main_process() -> bool:
    """Whether this process is the one that writes files and speaks to the user."""
    return rank() == 0


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


@dataclass(frozen=True)
class ProcessGrid:
    """Where this process stands: one of `replicas` that share samples, and in it one of `shards` that share
    points."""

    replicas: int
    replica: int
    shards: int = 1
    shard: int = 0
    group: dist.ProcessGroup | None = None  # of those that hold the same samples

    def points(self, data: FieldData) -> FieldData:
        """The points of every sample that are this process's own; the parts differ by one point at most."""
        if self.shards == 1:
            return data
        own = torch.arange(data.coords.shape[-2]).tensor_split(self.shards)[self.shard]
        if not len(own):
            count = data.coords.shape[-2]
            raise UserError(f"training.shards={self.shards} for {count} points leaves some without any")
        mine = slice(int(own[0]), int(own[-1]) + 1)
        inputs = None if data.inputs is None else data.inputs[:, mine]
        return FieldData(data.spec, data.coords[..., mine, :], inputs, data.targets[:, mine])


def process_grid(shards: int = 1, device: str = "cpu") -> ProcessGrid:
    """This process's place among all, `shards` at a time. All make theirs together."""
    if shards == 1:
        return ProcessGrid(size(), rank())
    if size() % shards:
        raise UserError(
            f"training.shards={shards} needs {shards} processes or a multiple of them, not {size()}; "
            f"start them with torchrun --nproc-per-node {shards}"
        )
    mesh = init_device_mesh(device, (size() // shards, shards), mesh_dim_names=("replicate", "shard"))
    replica, shard = mesh.get_local_rank("replicate"), mesh.get_local_rank("shard")
    return ProcessGrid(size() // shards, replica, shards, shard, mesh.get_group("shard"))


@dataclass(frozen=True)
class BatchShard:
    """One process's part of a joint batch: `own` samples of its `joint`.

    Where there are fewer samples than processes, some have none. They compute the first sample of the batch
    too and give it no weight, so that all have the same gradients to sum.
    """

    index: Int[Tensor, "B"]
    own: int
    joint: int
    among: ProcessGrid

    def parts(self, batch: int) -> tuple[Tensor, ...]:
        """What is computed at once, of a joint `batch`."""
        return self.index.split(ceil(batch / self.among.replicas))

    def mean(self, mean: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The mean over the joint batch, of the means over each share."""
        if size() == 1:
            return mean
        return _sum(mean * (self.own / self.joint / self.among.shards))

    @torch.no_grad()
    def join(self, model: nn.Module, loss: Float[Tensor, ""], reduction: str) -> Float[Tensor, ""]:
        """Give the model the gradient of the joint batch, and return its mean loss.

        `loss` is the mean over this share, the gradients are those of its mean or its sum: `reduction`. The
        processes that share points have the same loss, and each a part of its gradient.
        """
        if size() == 1:
            return loss
        part = self.own / self.joint
        factor = part if reduction == "mean" else float(self.own > 0)
        gradients = [_real(weight.grad) for weight in model.parameters() if weight.grad is not None]
        mine = part / self.among.shards * loss.view(1)
        flat = torch.cat([*(factor * gradient.flatten() for gradient in gradients), mine])
        *sums, joint_loss = _sum(flat).split([*(gradient.numel() for gradient in gradients), 1])
        for gradient, total in zip(gradients, sums, strict=True):
            gradient.copy_(total.view_as(gradient))
        return joint_loss.view(()).to(loss.dtype)


def shard_batch(index: Int[Tensor, "B"], among: ProcessGrid | None = None) -> BatchShard:
    """This process's part of the samples at `index`; the parts differ by one sample at most."""
    among = among or ProcessGrid(size(), rank())
    own = index.tensor_split(among.replicas)[among.replica]
    return BatchShard(own if len(own) else index[:1], len(own), len(index), among)


def all_reduce_max(number: int | None) -> int | None:
    """The largest number that any process has. All wait here for each other."""
    if size() == 1:
        return number
    return int(_all_reduce(torch.tensor(number or 0), dist.ReduceOp.MAX)) or None


def seed_rank(seed: int, step: int) -> None:
    """Random numbers of this process's own for the step ahead.

    Those of the first process go on as they were: it alone writes their state into checkpoints.
    """
    if rank() > 0:
        torch.manual_seed(torch_generator(seed, step, rank()).initial_seed())


def require_same_start(model: nn.Module, steps: int) -> None:
    """Refuse processes that are not at the same step with the same weights. All wait here for each other."""
    if size() == 1:
        return
    digest = hashlib.sha256(str(steps).encode())
    for value in model.state_dict().values():
        digest.update(value.detach().cpu().flatten().view(torch.uint8).numpy())
    number = 1 + int.from_bytes(digest.digest()[:7])
    if all_reduce_max(number) != _least(number):
        raise UserError(
            "the processes do not start from the same weights; "
            "put the run folder where all of them can read its checkpoint"
        )


def _least(number: int) -> int:
    return int(_all_reduce(torch.tensor(number), dist.ReduceOp.MIN))


def _sum(value: Tensor) -> Tensor:
    return _all_reduce(value, dist.ReduceOp.SUM)


def _all_reduce(value: Tensor, operation: Any) -> Tensor:
    try:
        dist.all_reduce(value, operation)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"another process stopped or does not answer ({reason}); see its message") from error
    return value


def _real(value: Tensor) -> Tensor:
    return torch.view_as_real(value) if value.is_complex() else value
