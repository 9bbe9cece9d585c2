"""The same on one process and on several that share points. As a script, started once for each of four
processes with what `torchrun` sets in the environment: `sharded_run.py FOLDER` plays all scenarios."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_run import checked_setup

from linearno import LinearNO, Transolver
from linearno.core.atomic_io import write_tensors
from linearno.data import Batch, FieldData, FieldSpec, Scaler, relative_l2, relative_mae
from linearno.inference.streaming import Streamer
from linearno.ops import sharded
from linearno.training import LossConfig, Timed, TrainingConfig, fit, parallel
from linearno.training.losses import make_loss

POINTS = 37
SMALL = {"width": 16, "depth": 2, "heads": 2, "slices": 5}
MODELS = {
    "linearno": lambda: LinearNO(coords=2, inputs=1, outputs=2, **SMALL),
    "transolver": lambda: Transolver(coords=2, inputs=1, outputs=2, **SMALL),
    "table6": lambda: LinearNO(coords=2, inputs=1, outputs=2, **SMALL, phi="N", psi="M"),
    "ablation": lambda: LinearNO(
        coords=2, inputs=1, outputs=2, **SMALL, tied=True, psi="phi", mix="attention"
    ),
    "recompute": lambda: LinearNO(coords=2, inputs=1, outputs=2, **SMALL),
}
CUTS = {2: [30], 3: [3, 22]}  # where the points are cut: parts of very different size
LOSSES = {
    "relative_l2": lambda p, batch: relative_l2(p, batch).sum(),
    "relative_mae": lambda p, batch: relative_mae(p, batch).sum(),
    "mse": make_loss(LossConfig(kind="mse"), None),
}


def lively(name: str):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.5)
    model.recompute = name == "recompute"
    return model


def question():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, POINTS, c, generator=generator, dtype=torch.float64) for c in (2, 1, 2)]


def own_parts(count: int, rank: int):
    return [part.tensor_split(CUTS[count], dim=1)[rank].contiguous() for part in question()]


def answers(name: str, loss: str, asked, group=None) -> dict[str, torch.Tensor]:
    """Outputs, loss, and the gradients of weights and inputs at the points asked."""
    model, (coords, inputs, truth) = lively(name), asked
    coords, inputs = coords.requires_grad_(), inputs.requires_grad_()
    with sharded(group):
        out = model(coords, inputs)
        value = LOSSES[loss](out, Batch(truth, None, truth))
        value.backward()
    weights = {f"weight.{key}": w.grad for key, w in model.named_parameters() if w.grad is not None}
    for gradient in weights.values() if group else ():
        dist.all_reduce(gradient, group=group)
    return {"out": out, "loss": value, "coords": coords.grad, "inputs": inputs.grad} | weights


def streamed(asked, group=None) -> dict[str, torch.Tensor]:
    with sharded(group):
        return {"out": Streamer(lively("transolver"), chunk=5).forward(*asked[:2])}


SPEC = FieldSpec(
    coords=("x", "y"), inputs=("a",), outputs=("u", "v", "w"), standardised=("inputs", "outputs")
)
RUNS = {
    "mean": TrainingConfig(epochs=2, batch=3, lr=1e-2, validation=2, loss=LossConfig(reduction="mean")),
    "recompute": TrainingConfig(epochs=2, batch=4, lr=1e-2, validation=2, recompute=True),
}


def trained(folder: Path, name: str, shards: int) -> dict[str, torch.Tensor]:
    """Seven samples in time; of batches of three the last leaves the second replica without any."""
    torch.manual_seed(0)
    model = LinearNO(coords=2, inputs=1, outputs=1, time=True, **SMALL).double()
    generator = torch.Generator().manual_seed(2)
    coords, inputs, targets = (
        torch.randn(9, 21, c, generator=generator, dtype=torch.float64) for c in (2, 1, 3)
    )
    data, task = FieldData(SPEC, coords, inputs, targets), Timed()
    asked = task.spec(SPEC)
    scaler = Scaler.fit(asked, task.scaling_batch(data.everything(), asked))
    config = RUNS[name].model_copy(update={"shards": shards})
    setup = checked_setup(model, scaler, data, config, seed=3, task=task)
    fit(setup, device=torch.device("cpu"), folder=folder, fingerprint="")
    return model.state_dict()


def main() -> None:
    folder = Path(sys.argv[1])
    with parallel.processes("cpu"):
        rank = parallel.rank()
        for count in CUTS:
            group = dist.new_group(list(range(count)))
            if rank < count:
                for name in MODELS:
                    loss = list(LOSSES)[list(MODELS).index(name) % len(LOSSES)]
                    found = answers(name, loss, own_parts(count, rank), group)
                    write_tensors(folder / f"{name}-{count}-{rank}.safetensors", found)
                write_tensors(
                    folder / f"stream-{count}-{rank}.safetensors", streamed(own_parts(count, rank), group)
                )
        for name in RUNS:
            write_tensors(folder / f"train-{name}-{rank}.safetensors", trained(folder / name, name, shards=2))


if __name__ == "__main__":
    main()
