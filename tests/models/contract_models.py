"""Every registered model at a tiny size, with data that it takes.

A case is a model by its name, or "NAME, WHAT" with further settings. Axes: S samples, N points, C channels.
"""

from math import prod

import torch
from torch import Tensor, nn

from linearno.data import FieldData, FieldSpec
from linearno.models import MODELS, ModelEntry, build_model
from linearno.nn import ModelConfig
from linearno.nn.protocol import SelfFitting, completes, needs_of, spec_of
from linearno.training.tasks import Completion, Task

GRID = (18, 4)  # U-Nets need more than 16 points along an axis
POINTS = prod(GRID)
TINY = {  # a model gets those that it has
    **{"width": 16, "depth": 1, "heads": 2, "slices": 6, "modes": 2},
    **{"landmarks": 8, "eigenfunctions": 3},
    **{"unets": 1, "key_layers": 1, "mlp_layers": 1, "head_layers": 1},
}
SMALL_DECODER = {"latent": 12, "resolution": 8}
SMALL_CUBE = {"latent": 7, "kernel_in": (8,), "kernel_out": (8,), "frequencies": 4}
OWN_SETTINGS: dict[str, dict] = {  # further settings of a case
    "gino": SMALL_CUBE,
    "gino, nonlinear": SMALL_CUBE,
    "oformer": SMALL_DECODER,
    "oformer, marching": SMALL_DECODER,
}
VARIANTS = {
    "fno, latent": {"latent": 16},
    "galerkin, distances": {"unified": {"ref": 3, "place": "coords"}, "append": "coords"},
    "galerkin, original": {"form": "original"},
    "geo-fno, scattered": {"latent": 9},
    "gino, nonlinear": {"transform": "nonlinear", "embedding": "nerf", "latent": (6, 9), "depth": 2},
    "gnot, original": {"form": "original"},
    "linearno, grid": {"stem": "conv"},
    "lno, grid": {"trunk": "grid"},
    "lrsa, grid": {"point_mlp": "conv"},
    "lrsa, mass": {"mass": True, "gated": True, "bias": "all"},
    "oformer, marching": {"march": 2, "heads": 1, "dropout": 0.1},
    "ono, linear": {"attention": "efficient"},
    "ono, original": {"form": "original", "attention": "normalised"},
}
CASES = [name for name in MODELS if MODELS[name].cls.__module__.startswith("linearno.")] + [*VARIANTS]
SCATTERED = {"fno, latent", "geo-fno, scattered"}  # cases whose data have no grid
AUX_KINDS = {"edges": "edge"}  # of auxiliary fields; any other is of points
OBSERVATIONS = 12


def entry_of(case: str) -> ModelEntry:
    return MODELS[case.partition(",")[0]]


def settings_of(case: str) -> dict:
    fields = entry_of(case).config.model_fields
    tiny = {key: value for key, value in TINY.items() if key in fields}
    return tiny | OWN_SETTINGS.get(case, {}) | VARIANTS.get(case, {})


def config_of(case: str) -> ModelConfig:
    entry = entry_of(case)
    return entry.config.make({"name": entry.name, **settings_of(case)})


def task_of(case: str) -> Task:
    return Completion(ratio=0.4) if "points" in _needs(case) else Task()


def build(case: str, grid: tuple[int, int] = GRID) -> nn.Module:
    """The model for fields as those of `data_of`, drawn from seed 0; fitted to these if in closed form."""
    torch.manual_seed(0)
    model = build_model(config_of(case), task_of(case).spec(_data_spec(case, grid)))
    if isinstance(model, SelfFitting):
        batch = data_of(case, grid=grid).everything()
        model.fit(batch.coords, batch.inputs, batch.targets)
    return model


def data_of(case: str, samples: int = 4, grid: tuple[int, int] = GRID) -> FieldData:
    """Samples on one grid of distorted points, from seed 0; inputs only where the task takes them."""
    generator = torch.Generator().manual_seed(0)
    axes = torch.meshgrid(*(torch.linspace(0, 1, side) for side in grid), indexing="ij")
    coords = torch.stack(axes, dim=-1).flatten(0, 1)
    coords = coords + 0.05 * torch.rand(coords.shape, generator=generator)
    a = torch.rand(samples, len(coords), 1, generator=generator)
    targets = torch.cat([a * coords[:, :1], a.square() + coords[:, 1:]], dim=-1)
    spec = _data_spec(case, grid)
    ring = torch.stack([torch.arange(len(coords)), torch.arange(len(coords)).roll(1)])
    aux = {"edges": ring, "mass": torch.rand(samples, len(coords), 1, generator=generator)}
    return FieldData(
        spec,
        coords,
        a if spec.inputs else None,
        targets,
        surface=torch.arange(len(coords)) < grid[1] if "surface" in _needs(case) else None,
        aux={need: aux[need] for need in spec.aux},
    )


def question(
    model: nn.Module, points: int, samples: int = 2
) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
    """Arguments of one call: some observations for a completer, inputs at all points for any other model."""
    generator = torch.Generator().manual_seed(1)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    given = OBSERVATIONS if completes(model) else points
    known = {
        "points": rand(samples, points, 2),
        "mass": rand(samples, given, 1),
        "edges": torch.arange(samples * given).repeat(2, 1),
        "surface": rand(samples, given) < 0.5,
        "positions": rand(samples, given, 2),
    }
    more = {need: known[need] for need in needs_of(model) or () if need != "grid"}
    return (rand(samples, given, 2), rand(samples, given, spec_of(model).sizes["inputs"])), more


def _needs(case: str) -> tuple[str, ...]:
    return entry_of(case).needs_of(config_of(case))


def _data_spec(case: str, grid: tuple[int, int]) -> FieldSpec:
    needs = _needs(case)
    aux = {
        need: AUX_KINDS.get(need, "point")
        for need in needs
        if need not in ("grid", "points", "positions", "surface")
    }
    inputs = () if "points" in needs else ("a",)
    return FieldSpec(
        coords=("x", "y"),
        inputs=inputs,
        outputs=("u", "v"),
        grid=None if case in SCATTERED else grid,
        aux=aux,
    )
