"""Training settings of published code, as changes to the protocol of a benchmark."""

from collections.abc import Mapping
from typing import Any

from linearno.data.benchmark import Variant

LNO_TRAINING = {
    "batch": 4,
    "betas": (0.9, 0.99),
    "weight_decay": 5e-5,
    "clip": 1000.0,
    "schedule": "onecycle",
    "schedule_every": "step",
    "start_factor": 1e4,
    "warmup": 0.2,
    "loss": {"reduction": "mean"},  # published: relative L2 of standardised fields
}
FLARE_TRAINING = {
    "batch": 2,
    "weight_decay": 1e-5,
    "clip": 1.0,
    "schedule": "onecycle",
    "schedule_every": "step",
    "start_factor": 1e4,
    "warmup": 0.1,
    "ema": 0.999,
    "precision": "fp32",
    "loss": {"reduction": "mean"},
}
# For Fourier operators, LSM and linear attention. tf32 is our setting: bf16 was verified for LinearNO only.
LIBRARY_TRAINING = {  # the Neural-Solver-Library's
    "weight_decay": 1e-5,
    "clip": None,
    "schedule": "onecycle",
    "schedule_every": "step",
    "precision": "tf32",
}
GEO_FNO_TRAINING = {
    "epochs": 501,
    "batch": 20,
    "optimizer": "adam",
    "weight_decay": 1e-4,
    "clip": None,
    "schedule": "step",
    "schedule_every": "epoch",
    "precision": "tf32",
}
F_FNO_TRAINING = {
    "epochs": 200,
    "batch": 10,
    "weight_decay": 1e-4,
    "clip": None,
    "schedule": "cosine",  # published: after 500 steps of warm-up
    "schedule_every": "step",
    "precision": "tf32",
}
OFORMER_TRAINING = LIBRARY_TRAINING | {"lr": 8e-4}
F_FNO_SIMPLIFIED: dict[str, Any] = {
    "form": "simplified",
    "modes": 12,
    "depth": 8,
}  # in the Neural-Solver-Library


def library(
    title: str,
    *,
    model: str | None = None,
    data: Mapping[str, Any] | None = None,
    note: str = "",
    **settings: Any,
) -> Variant:
    """A model with settings of the Neural-Solver-Library (https://github.com/thuml/Neural-Solver-Library).

    Args:
        title: name of the model in the summary.
        model: registered name of the model, if the recipe has another name.
        data: changes to the benchmark's data.
        note: deviation from the library's settings, such as " with our sizes".
        **settings: settings of the model.
    """
    training = "AdamW, one-cycle to 1e-3, weight decay 1e-5, unclipped; our batch"
    summary = f"{title} of the Neural-Solver-Library{note}: {training}."
    return Variant(settings, model, LIBRARY_TRAINING, data or {}, summary=summary)


def geo_fno(
    title: str = "Geo-FNO",
    *,
    source: str = "as published",
    halved: int = 100,
    data: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Variant:
    """Geo-FNO as its authors train it (https://github.com/neuraloperator/Geo-FNO).

    Args:
        title: name of the model in the summary.
        source: origin of the settings, for the summary.
        halved: epochs after which the learning rate is halved.
        data: changes to the benchmark's data.
        **settings: settings of the model.
    """
    training = f"Adam, 1e-3 halved every {halved} epochs, weight decay 1e-4, batches of 20"
    changes = GEO_FNO_TRAINING | {"decay_epochs": halved}
    return Variant(settings, None, changes, data or {}, summary=f"{title} {source}: {training}.")


def f_fno(source: str, *, data: Mapping[str, Any] | None = None, **settings: Any) -> Variant:
    """F-FNO as its authors train it (https://github.com/alasdairtran/fourierflow).

    Args:
        source: origin of the settings, for the summary.
        data: changes to the benchmark's data.
        **settings: settings of the model.
    """
    training = "AdamW, cosine from 1e-3 without warm-up, weight decay 1e-4, 200 epochs"
    summary = f"F-FNO, {source}: {training}."
    return Variant({"width": 64, "depth": 24, **settings}, None, F_FNO_TRAINING, data or {}, summary=summary)


def pod_gp(*, data: Mapping[str, Any] | None = None, task: Mapping[str, Any] | None = None) -> Variant:
    """POD-GP with its default settings.

    Args:
        data: changes to the benchmark's data.
        task: changes to the benchmark's task, see `Variant`.
    """
    summary = "POD-GP: principal components and Gaussian processes, fitted in closed form (our settings)."
    return Variant(data=data or {}, task=task or {}, summary=summary)


def oformer(
    source: str,
    *,
    resolution: int,
    data: Mapping[str, Any] | None = None,
    task: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Variant:
    """OFormer with the learning rate of its authors on Darcy flow (https://github.com/BaratiLab/OFormer).

    Args:
        source: origin of the settings, for the summary.
        resolution: points along the side of the domain.
        data: changes to the benchmark's data.
        task: changes to the benchmark's task, see `Variant`.
        **settings: settings of the model.
    """
    summary = f"OFormer, {source}: one-cycle to 8e-4; schedule, decay and batch are our settings."
    settings |= {"resolution": resolution, "dropout": 0.05}
    return Variant(settings, None, OFORMER_TRAINING, data or {}, task or {}, summary=summary)
