"""AirfRANS: predict the flow around NACA airfoils of any shape, speed and angle of attack."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from pydantic import Field, PositiveInt
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data.airfrans_files import Simulation
from linearno.data.airfrans_generation import RESOLUTION, export_airfrans, generate_airfrans
from linearno.data.airfrans_metrics import (
    corners_as_edges,
    drag_error,
    drag_spearman,
    force_table,
    lift_error,
    lift_spearman,
    surface,
    volume,
    volume_and_surface_loss,
    volume_nut,
    volume_ux,
    volume_uy,
    with_no_slip,
)
from linearno.data.airfrans_models import MODELS, PROTOCOL, VARIANTS
from linearno.data.airfrans_names import MANIFEST, AirfransSplit, case_of, manifest_keys, names_of
from linearno.data.airfrans_sets import FILES, GeneratedFlows, OriginalFiles, SimulationSet
from linearno.data.availability import Source
from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, SampleLayout, Splits
from linearno.data.field_data import FieldData
from linearno.data.generation.card import CARD
from linearno.data.sample import Batch, FieldSpec
from linearno.data.scaler import Standardise

SPEC = FieldSpec(
    coords=("x", "y"),
    inputs=("stream_x", "stream_y", "distance", "normal_x", "normal_y"),
    outputs=("ux", "uy", "p", "nut"),
    units={
        **dict.fromkeys(("x", "y", "distance"), "m"),
        **dict.fromkeys(("stream_x", "stream_y", "ux", "uy"), "m/s"),
        "p": "m²/s²",
        "nut": "m²/s",
    },
    standardised=("coords", "inputs", "outputs"),
    plot_extent=((-0.4, 1.6), (-0.7, 0.7)),
    vectors={"velocity": ("ux", "uy")},
    aux={"wall_cells": "edge", "stream": "sample", "scale": "sample"},
)


class AirfransConfig(DataConfig):
    """Train on the first `train` simulations of a list but for the last of them, test on the first `test`.

    Args:
        split: `full`; `scarce`, a quarter of its training samples; `reynolds` or `aoa`, tested outside of the
            trained Reynolds numbers or angles of attack. These two have as many samples as their rule gives,
            at most `train` and `test`.
        holdout: share of the training samples, the last ones, that is not trained on: the validation samples
            of the published protocol, which does not use them to choose weights.
        nodes: least number of nodes of a generated simulation; flows are refined on reading.
        cache: folder of the compact copy of the original files; `compact` next to their manifest if None.
        source: original files, generated set, or `auto`: the generated set if there is one.
    """

    name: Literal["airfrans"] = "airfrans"
    root: Path = Path("data/airfrans")
    train: PositiveInt = 800
    test: PositiveInt = 200
    split: AirfransSplit = "full"
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    nodes: PositiveInt = 60_000
    cache: Path | None = None
    source: Source = "auto"


def open_set(cfg: AirfransConfig) -> SimulationSet:
    """The generated set, or the original files where there is none."""
    original = OriginalFiles(cfg.root, cfg.cache)
    generated = (cfg.root / CARD).exists() or not (original.folder / MANIFEST).exists()
    if cfg.source == "generated" or (cfg.source == "auto" and generated):
        return GeneratedFlows(cfg.root, cfg.nodes)
    return original


def open_airfrans(cfg: AirfransConfig) -> Splits:
    """Load both splits.

    Disk   the download of AirfRANS: Dataset/manifest.json and Dataset/NAME/NAME_{internal.vtu,aerofoil.vtp};
           or {split}_{case,nodes,velocity,pressure,nut}.npy as `generate` writes them
    Item   coords (N, 2); inputs (N, 5): velocity of the stream, distance from the airfoil, normal on it and
           zero elsewhere; targets (N, 4): velocity, pressure over density, turbulent viscosity; `surface`:
           nodes on the airfoil. `aux`: quadrilaterals that touch the airfoil (`edges_as_corners`), speed and
           angle in radians, deviations of the targets in the training samples. N differs between samples.
    """
    found = open_set(cfg)
    train_key, test_key = manifest_keys(cfg.split)
    train, test = (
        _take(found, key, getattr(cfg, part), part, cfg)
        for part, key in (("train", train_key), ("test", test_key))
    )
    used = train[: len(train) - int(cfg.holdout * len(train))]
    simulations = found.read(used)
    scale = Standardise.fit(torch.from_numpy(np.concatenate([each.fields for each in simulations]))).std
    data = field_data(used, simulations, scale)
    tested = field_data(test, found.read(test), scale)
    trained = f"{len(used)} of {len(train)} simulations of {train_key}, {len(test)} of {test_key}"
    return Splits(data, tested, f"{found.source}; {trained}")


def _take(found: SimulationSet, key: str, count: int, part: str, cfg: AirfransConfig) -> tuple[str, ...]:
    """The first `count` names of a list; fewer if a rule made the list."""
    names = names_of(found.manifest, key, cfg.root, how="fetch the files again")
    by_rule = cfg.split in ("reynolds", "aoa")
    if not names or (len(names) < count and not by_rule):
        raise UserError(
            f"{found.source}: {key} has {len(names)} simulations, fewer than {part}={count}; "
            f"lower data.{part} or generate more"
        )
    return names[:count]


def field_data(
    names: Sequence[str], simulations: Sequence[Simulation], scale: Float[Tensor, "4"]
) -> FieldData:
    """Packed samples with the deviations `scale` of the targets in training."""
    samples = [_sample(*pair, scale) for pair in zip(names, simulations, strict=True)]
    marks = [torch.zeros(len(each.nodes), dtype=torch.bool) for each in simulations]
    for mark, each in zip(marks, simulations, strict=True):
        mark[torch.from_numpy(each.wall).long()] = True
    return FieldData.pack(SPEC, samples, marks)


def _sample(name: str, flow: Simulation, scale: Float[Tensor, "4"]) -> Batch:
    case = case_of(name)
    angle = np.deg2rad(case.angle)
    inputs = np.zeros((len(flow.nodes), 5), dtype=np.float32)
    inputs[:, 0], inputs[:, 1] = case.speed * np.cos(angle), case.speed * np.sin(angle)
    inputs[:, 2], inputs[flow.wall, 3:] = flow.distance, flow.normals
    on_wall = np.zeros(len(flow.nodes), dtype=bool)
    on_wall[flow.wall] = True
    quads = torch.from_numpy(flow.quads[on_wall[flow.quads].any(axis=1)].astype(np.int64))
    aux = {
        "wall_cells": corners_as_edges(quads),
        "stream": torch.tensor([case.speed, angle], dtype=torch.float32),
        "scale": scale,
    }
    nodes, fields = torch.from_numpy(flow.nodes), torch.from_numpy(flow.fields)
    return Batch(nodes, torch.from_numpy(inputs), fields, aux=aux)


def verify_airfrans(root: Path) -> list[str]:
    """Problems of the generated set, and of the original files: missing ones, and unreadable ones."""
    lines = []
    original = OriginalFiles(root)
    if (root / CARD).exists() or not (original.folder / MANIFEST).exists():
        lines += FILES.verify(root)
    if (original.folder / MANIFEST).exists():
        try:
            names = dict.fromkeys(
                name
                for key in original.manifest
                for name in names_of(original.manifest, key, root, how=original.how)
            )
            original.read(list(names))
        except UserError as error:
            lines.append(str(error))
    return lines


def mesh_cells(cfg: AirfransConfig, samples: Sequence[int]) -> list[ndarray]:
    """Quadrilaterals of some test samples, for pictures."""
    found = open_set(cfg)
    names = found.manifest[manifest_keys(cfg.split)[1]]
    return [each.quads for each in found.read([names[index] for index in samples])]


DATASETS.register("airfrans")(
    Benchmark(
        summary="AirfRANS: shape of a NACA airfoil, speed and angle of the stream → velocity, pressure, "
        "turbulent viscosity, lift and drag; each airfoil on its own mesh",
        config=AirfransConfig,
        open=open_airfrans,
        verify=verify_airfrans,
        generate=generate_airfrans,
        export=export_airfrans,
        protocol=PROTOCOL,
        loss=volume_and_surface_loss,
        metrics={
            "volume": volume,
            "surface": surface,
            "lift_error": lift_error,
            "drag_error": drag_error,
            "volume_ux": volume_ux,
            "volume_uy": volume_uy,
            "volume_nut": volume_nut,
        },
        summaries={"lift_spearman": lift_spearman, "drag_spearman": drag_spearman},
        constrain=with_no_slip,
        test_set=force_table,
        cells=mesh_cells,
        models=MODELS,
        variants=VARIANTS,
        layout=lambda config: SampleLayout(SPEC, packed=True),
        resolution=RESOLUTION,
        published=(MANIFEST,),
        small={"train": 30, "test": 6},
    )
)
