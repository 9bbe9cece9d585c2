"""Protocol and models of AirfRANS."""

from collections.abc import Mapping
from typing import Any

from linearno.data.benchmark import Variant

BOX = ((-2.0, 4.0), (-1.5, 1.5))
REFERENCE_POINTS = {"ref": 8, "place": "positions", "box": BOX}
GRAPH = {"radius": 0.05, "neighbours": 64}  # in metres
POINTS = 32_000  # of a simulation in an epoch, and of a draw of the published evaluation

PROTOCOL: dict[str, Any] = {  # of the authors of AirfRANS and Transolver
    "epochs": 398,
    "batch": 1,
    "optimizer": "adam",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "clip": None,
    "schedule": "onecycle",
    "schedule_every": "step",
    "precision": "tf32",
    "points": POINTS,
    "checkpoint_seconds": 60,
    "loss": {"kind": "benchmark", "scaled": True, "reduction": "mean"},
}

SPLITS: dict[str, dict[str, Any]] = {
    "airfrans": {},
    "airfrans-scarce": {
        "data": {"split": "scarce", "train": 200},
        "summary": "trained on a quarter of the simulations",
    },
    "airfrans-reynolds": {
        "data": {"split": "reynolds", "train": 1000, "test": 1000},
        "summary": "tested outside of the trained Reynolds numbers, 3e6 to 5e6",
    },
    "airfrans-aoa": {
        "data": {"split": "aoa", "train": 1000, "test": 1000},
        "summary": "tested outside of the trained angles of attack, −2.5 to 12.5 degrees",
    },
}
COVERING = {"name": "covering", "points": POINTS}
VARIANTS: Mapping[str, Mapping[str, Any]] = SPLITS | {
    "airfrans-covering": {
        "task": COVERING,
        "summary": "tested as published, with the means over random draws of 32,000 points that cover a mesh",
    }
}


def _baseline(title: str, **settings: Any) -> Variant:
    """A model with the settings of AirfRANS's authors."""
    summary = f"{title} with the sizes of AirfRANS; Adam, one-cycle to 1e-3, 398 epochs."
    return Variant(settings, task=_task(settings), summary=summary)


def _ours(title: str, **settings: Any) -> Variant:
    """A model whose settings on AirfRANS are unpublished."""
    summary = f"{title}; sizes are our settings, training as the other models here."
    return Variant(settings, task=_task(settings), summary=summary)


def _task(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Graphs of drawn points differ from those of a whole mesh: models on them are tested as trained."""
    return COVERING if "graph" in settings else {}


MODELS: Mapping[str, Variant] = {
    "linearno": Variant(
        settings={
            "width": 256,
            "slices": 32,
            "mlp_ratio": 2,
            "temperature": None,
            "placeholder": "always",
            "unified": REFERENCE_POINTS,
        },
        training={"epochs": 400},
        summary="LinearNO: distances to 8×8 reference points; Adam, one-cycle to 1e-3, 400 epochs.",
    ),
    "transolver": Variant(
        settings={"width": 256, "slices": 32, "mlp_ratio": 2, "unified": REFERENCE_POINTS},
        summary="Transolver: distances to 8×8 reference points; Adam, one-cycle to 1e-3, 398 epochs.",
    ),
    "transolver++": _ours("Transolver++ at the width of Transolver", width=256, slices=32, mlp_ratio=2),
    "lno": Variant(
        settings={"width": 256, "depth": 8},
        training={"lr": 1e-4},
        summary="LNO: learning rate 1e-4 as published; sizes are our settings.",
    ),
    "lrsa": Variant(
        settings={"width": 256, "slices": 64},
        training={"lr": 3e-4},
        summary="LRSA: width 256, 64 slices and learning rate 3e-4 as published; the rest as LinearNO.",
    ),
    "gnot": _ours("GNOT"),
    "galerkin": _ours("Galerkin Transformer"),
    "geo-fno": _ours("Geo-FNO with a learned deformation"),
    "mlp": _baseline("MLP at each point"),
    "pointnet": _baseline("PointNet"),
    "graphsage": _baseline("GraphSAGE", graph=GRAPH),
    "graphunet": _baseline("GraphUNet", graph=GRAPH, radii=(0.05, 0.2, 0.5, 1.0), neighbours=64),
    "meshgraphnet": _ours("MeshGraphNet", graph=GRAPH),
    "gno": _ours("GNO", graph=GRAPH),
    "gino": _ours("GINO on a grid of 64×64 points", box=BOX),
}
