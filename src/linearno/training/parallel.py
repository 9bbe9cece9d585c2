"""Data-parallel and point-parallel training: processes share every batch and keep the same weights.

With `shards` > 1, groups of `shards` processes share the points of their samples (`ops.sharded`).

Gradients are summed in one buffer after the last backward pass of a step. `DistributedDataParallel` takes the
mean over processes instead, which is wrong if a batch does not divide evenly, and renames the weights.
Without a process group all functions are those of a single process.
"""

import hashlib
import logging
import os
import time
from collections.abc import Iterator
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
TIMEOUT = timedelta(minutes=10)  # processes that wait longer for another one end


@contextmanager
def processes(device: str) -> Iterator[torch.device]:
    """Join the processes started by `torchrun`; yields the device of this one.

    Without `torchrun` it yields `device`. An error that several processes raise is reported by the first.
    """
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        yield resolve_device(device)
        return
    store = _join(device)
    try:
        yield _own_device(device)
    except Interrupted as stop:
        dist.destroy_process_group()
        _exit_if_reported(str(stop), store, code=128 + stop.signal)
        raise
    except UserError as error:  # closing the group takes all processes, and others may still be at work
        _exit_if_reported(str(error), store, code=2)
        raise
    dist.destroy_process_group()


def _join(device: str) -> Any:
    """Start the process group; returns the store that its processes share."""
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
    return store


def _exit_if_reported(message: str, store: Any, *, code: int) -> None:
    """Exit without a message if another process reports the same one."""
    try:
        reported = store.add(f"linearno/{message}", 1) > 1
    except RuntimeError:  # the process with the store has ended
        return
    if reported:
        time.sleep(1)  # torchrun ends all processes at the first exit, maybe before the message is printed
        raise SystemExit(code)


def _own_device(name: str) -> torch.device:
    """The device of this process: on CUDA `cuda:LOCAL_RANK`."""
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


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def is_main_process() -> bool:
    """Whether this process writes files and prints."""
    return rank() == 0


@dataclass(frozen=True)
class ProcessGrid:
    """The position of this process among all.

    Args:
        replicas: number of process groups that share each batch.
        replica: of this process.
        shards: processes in each of them, which share the points of their samples.
        shard: of this process.
        group: the processes of this replica.
    """

    replicas: int
    replica: int
    shards: int = 1
    shard: int = 0
    group: dist.ProcessGroup | None = None

    def points(self, data: FieldData) -> FieldData:
        """This shard's points of every sample; the shards differ by one point at most."""
        points = data.coords.shape[-2]
        if self.shards == 1:
            return data
        if self.shards > points:
            raise UserError(f"training.shards={self.shards} for {points} points leaves some without any")

        def mine(part: Tensor) -> Tensor:
            return part.tensor_split(self.shards, dim=-2)[self.shard]

        inputs = None if data.inputs is None else mine(data.inputs)
        return FieldData(data.spec, mine(data.coords), inputs, mine(data.targets))


def process_grid(shards: int = 1, device: str = "cpu") -> ProcessGrid:
    """The position of this process, with `shards` processes in a replica. All call this together."""
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
    """The samples of one process in a batch that all share.

    With fewer samples than processes some have none. They compute the first sample of the batch and give it
    no weight, so that all have the same gradients to sum.

    Args:
        index: samples to compute.
        own: number of those that count.
        joint: samples of the whole batch.
        grid: the position of the process.
    """

    index: Int[Tensor, "B"]
    own: int
    joint: int
    grid: ProcessGrid

    def parts(self, batch: int) -> tuple[Tensor, ...]:
        """Samples of each model call, if all processes together take `batch` at a time."""
        return self.index.split(ceil(batch / self.grid.replicas))

    def mean(self, mean: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The mean over the whole batch, from the `mean` over each shard."""
        if size() == 1:
            return mean
        return _all_reduce(mean * (self.own / self.joint / self.grid.shards), dist.ReduceOp.SUM)

    @torch.no_grad()
    def join(self, model: nn.Module, loss: Float[Tensor, ""], reduction: str) -> Float[Tensor, ""]:
        """Give the model the gradient of the whole batch; returns its mean loss.

        `loss` is the mean over this shard; the gradients are those of its mean or sum, as `reduction` says.
        Processes that share points have the same loss, and each a part of its gradient.
        """
        if size() == 1:
            return loss
        part = self.own / self.joint
        factor = part if reduction == "mean" else float(self.own > 0)
        grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
        gradients = [torch.view_as_real(part) if part.is_complex() else part for part in grads]
        mine = part / self.grid.shards * loss.view(1)
        flat = torch.cat([*(factor * gradient.flatten() for gradient in gradients), mine])
        sizes = [*(gradient.numel() for gradient in gradients), 1]
        *sums, joint_loss = _all_reduce(flat, dist.ReduceOp.SUM).split(sizes)
        for gradient, total in zip(gradients, sums, strict=True):
            gradient.copy_(total.view_as(gradient))
        return joint_loss.view(()).to(loss.dtype)


def shard_batch(index: Int[Tensor, "B"], grid: ProcessGrid | None = None) -> BatchShard:
    """This process's part of the samples at `index`; the parts differ by one sample at most."""
    grid = grid or ProcessGrid(size(), rank())
    own = index.tensor_split(grid.replicas)[grid.replica]
    return BatchShard(own if len(own) else index[:1], len(own), len(index), grid)


def all_reduce_max(number: int | None) -> int | None:
    """The largest number of any process; None if none has one. A barrier for all processes."""
    if size() == 1:
        return number
    return int(_all_reduce(torch.tensor(number or 0), dist.ReduceOp.MAX)) or None


def seed_rank(seed: int, step: int) -> None:
    """Seed this process for the next step, unless it is the first.

    The random state of the first process is continued, and stored in checkpoints.
    """
    if rank() > 0:
        torch.manual_seed(torch_generator(seed, step, rank()).initial_seed())


def require_same_start(model: nn.Module, steps: int) -> None:
    """Refuse processes that are not at the same step with the same weights. A barrier for all processes."""
    if size() == 1:
        return
    digest = hashlib.sha256(str(steps).encode())
    for value in model.state_dict().values():
        digest.update(value.detach().cpu().flatten().view(torch.uint8).numpy())
    number = int.from_bytes(digest.digest()[:7])
    most, least = _all_reduce(torch.tensor([number, -number]), dist.ReduceOp.MAX).tolist()
    if most != -least:
        raise UserError(
            "the processes do not start from the same weights; "
            "put the run folder where all of them can read its checkpoint"
        )


def _all_reduce(value: Tensor, operation: Any) -> Tensor:
    try:
        dist.all_reduce(value, operation)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"another process stopped or does not answer ({reason}); see its message") from error
    return value
