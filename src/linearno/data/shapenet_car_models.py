"""Protocol and models of ShapeNet-Car."""

from collections.abc import Mapping
from typing import Any

from linearno.data.benchmark import Variant

GRAPH = {"radius": 0.2, "neighbours": 32}  # in metres
BOX = ((-2.6, 2.6), (-1.9, 3.3), (-4.6, 7.6))  # contains the nodes of every car

PROTOCOL: dict[str, Any] = {
    "epochs": 200,
    "batch": 1,
    "optimizer": "adam",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "clip": None,
    "schedule": "onecycle",  # published: it ends at 1/1000 of its start, ours at 1/10 000
    "schedule_every": "step",
    "precision": "tf32",
    "checkpoint_seconds": 60,
    "loss": {"kind": "benchmark", "reduction": "mean"},
}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "shapenet-car": {},
    "shapenet-car-separate": {
        "data": {"statistics": "separate"},
        "summary": "with statistics of the pressure on the surface and of the velocity off it",
    },
}


def _library(title: str, **settings: Any) -> Variant:
    return Variant(settings, summary=f"{title} with the sizes of the Neural-Solver-Library; 200 epochs.")


def _ours(title: str, **settings: Any) -> Variant:
    """A model whose settings on ShapeNet-Car are unpublished."""
    return Variant(settings, summary=f"{title}; sizes are our settings, training as the other models here.")


SIZES = {"width": 256, "slices": 32, "mlp_ratio": 2}
MODELS: Mapping[str, Variant] = {
    "linearno": Variant(
        settings={**SIZES, "merge_layers": 2, "temperature": (0.1, 2.0), "placeholder": "always"},
        summary="LinearNO: width 256, 32 slices; Adam, one-cycle to 1e-3, 200 epochs.",
    ),
    "transolver": Variant(
        settings=SIZES, summary="Transolver: width 256, 32 slices; Adam, one-cycle to 1e-3, 200 epochs."
    ),
    "transolver++": _ours("Transolver++ at the width of Transolver", **SIZES),
    "lno": Variant(
        settings={"width": 256, "depth": 8},
        training={"lr": 1e-4},
        summary="LNO: learning rate 1e-4 as published; sizes are our settings.",
    ),
    "lrsa": Variant(
        settings={"width": 256, "slices": 64, "mlp_ratio": 1},
        training={"epochs": 400},
        summary="LRSA: width 256, 64 slices, 400 epochs as published.",
    ),
    "gnot": _library("GNOT", width=256, depth=8),
    "galerkin": _ours("Galerkin Transformer", width=256),
    "mlp": _ours("MLP at each point"),
    "graphsage": _library("GraphSAGE", width=128, depth=8, form="simplified", graph=GRAPH),
    "pointnet": _library("PointNet", width=16, form="simplified"),
    "graphunet": _library("GraphUNet", width=16, form="simplified", graph=GRAPH),
    "meshgraphnet": _ours("MeshGraphNet", graph=GRAPH),
    "gno": _ours("GNO", graph=GRAPH),
    "gino": _ours("GINO on a grid of 32³ points", modes=8, latent=(32, 32, 32), box=BOX),
}
