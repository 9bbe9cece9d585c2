"""A tiny network on tiny data. As a script: `tiny_run.py FOLDER [SIGNAL FORWARD]` trains it into FOLDER and
writes its weights there; with SIGNAL it sends itself that signal in the FORWARD-th training forward."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from linearno.core.atomic_io import write_tensors
from linearno.data.field_data import FieldData
from linearno.data.sample import FieldSpec
from linearno.data.scaler import Scaler
from linearno.training import Interrupted, LossConfig, TrainingConfig, TrainingSetup, fit
from linearno.training.setup import split_validation

SPEC = FieldSpec(
    coords=("x", "y"), inputs=("a",), outputs=("u",), grid=(4, 5), standardised=("inputs", "outputs")
)
CPU = torch.device("cpu")
EVERYTHING = TrainingConfig(  # 11 samples to train on: steps of 4, 4 and 3
    epochs=5, batch=2, accumulate=2, lr=3e-3, ema=0.9, validation=2, loss=LossConfig(gradient_weight=0.1)
)


class Tiny(nn.Module):
    """Pointwise; dropout makes the random state matter."""

    capturable = True

    def __init__(self, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 1))

    def forward(self, coords, inputs=None):
        return self.layers(torch.cat([coords, inputs], dim=-1))


def tiny_data(samples: int = 13) -> FieldData:
    """u = 100 + 10 a² x, to be learnt from a."""
    coords = torch.cartesian_prod(torch.linspace(0, 1, 4), torch.linspace(0, 1, 5))
    inputs = torch.randn(samples, 20, 1, generator=torch.Generator().manual_seed(1))
    return FieldData(SPEC, coords, inputs, 100 + 10 * inputs.square() * coords[:, :1])


def tiny_fit(folder: Path, config: TrainingConfig = EVERYTHING, *, model=None, seed=7, **options) -> Tiny:
    model = model or Tiny()
    data = options.pop("data", None) or tiny_data()
    settings = {"device": CPU, "fingerprint": config.model_dump_json() + str(seed)} | options
    fit(
        checked_setup(model, Scaler.fit(SPEC, data.everything()), data, config, seed),
        folder=folder,
        **settings,
    )
    return model


def checked_setup(model, scaler, data, config, seed=0, **parts) -> TrainingSetup:
    train, validation = split_validation(data, config.validation, seed)
    setup = TrainingSetup(model, scaler, train, config, validation, seed=seed, **parts)
    setup.check()
    return setup


def at_forward(number: int, act, model: Tiny | None = None) -> Tiny:
    """A network that calls `act` when it starts its `number`-th training forward, counted from one."""
    model, count = model or Tiny(), 0

    def before(module, _):
        nonlocal count
        count += module.training
        if module.training and count == number:
            act()

    model.register_forward_pre_hook(before)
    return model


def main() -> int:
    folder, *request = Path(sys.argv[1]), *sys.argv[2:]
    model = Tiny()
    if request:
        number = signal.Signals[request[0]]
        model = at_forward(int(request[1]), lambda: os.kill(os.getpid(), number))
    try:
        tiny_fit(folder, model=model)
    except Interrupted as stop:
        return stop.signal
    write_tensors(folder / "final.safetensors", model.state_dict())
    return 0


if __name__ == "__main__":
    sys.exit(main())
