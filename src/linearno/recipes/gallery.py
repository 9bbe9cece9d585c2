"""Recipes of `linearno gallery`: every benchmark at a size that takes two cores a few minutes.

Not benchmarks: sizes, epochs and learning rates were tuned on these test splits. To add a card, write a
function with `@gallery_entry`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linearno.core.registry import Registry
from linearno.data import (
    AirfoilConfig,
    AirfransConfig,
    BurgersConfig,
    ElasticityConfig,
    NavierStokesConfig,
    PipeConfig,
    PlasticityConfig,
)
from linearno.data.shapenet_car import ShapeNetCarConfig
from linearno.meshes import CasesConfig
from linearno.models import MODELS
from linearno.recipes import demo
from linearno.run_config import RECIPES, Recipe, RunConfig
from linearno.training import Completion, LossConfig, Rollout, Task, Timed, TrainingConfig

ROOT = Path("gallery")
TRAINING = TrainingConfig(batch=4, lr=2e-3, weight_decay=1e-5, eval_batch=10)


@dataclass(frozen=True)
class GalleryEntry:
    """One benchmark of the gallery: a small run, and the settings of its solver.

    Args:
        title: title of the card.
        recipe: the run; the first line of its docstring describes the task.
        resolution: resolution of the solver.
        seconds: approximate time to solve and train on two cores.
        scheme: scheme of the solver; its default if None.
    """

    title: str
    recipe: Recipe
    resolution: int
    seconds: int
    scheme: str | None = None

    @property
    def task(self) -> str:
        """One sentence: what is predicted from what."""
        return (self.recipe.__doc__ or "").splitlines()[0]


GALLERY: Registry[GalleryEntry] = Registry("benchmark of the gallery")


def gallery_entry(name: str, **fields: Any) -> Callable[[Recipe], Recipe]:
    """Decorator that registers the recipe `gallery/NAME` and its card, with `fields` of `GalleryEntry`."""

    def register(recipe: Recipe) -> Recipe:
        GALLERY.register(name)(GalleryEntry(recipe=recipe, **fields))
        return RECIPES.register(f"gallery/{name}")(recipe)

    return register


def small(
    benchmark: str, data: Any, training: TrainingConfig, task: Task | None = None, **model: Any
) -> RunConfig:
    """A run of a small model on `data`, LinearNO by default; `model` overrides its name and settings."""
    settings: dict[str, Any] = {"name": "linearno", "width": 32, "depth": 3, "heads": 2, "slices": 16} | model
    return RunConfig(
        recipe=f"gallery/{benchmark}",
        data=data.model_copy(update={"root": ROOT / benchmark / "data"}),
        model=MODELS[settings["name"]].config.make(settings),
        task=task or Task(),
        training=training,
    )


@gallery_entry("darcy", title="Darcy flow", resolution=demo.RESOLUTION, seconds=55)
def darcy() -> RunConfig:
    """The pressure in a porous medium, from its permeability."""
    return small("darcy", demo.DATA, demo.TRAINING, stem="conv", merge_layers=2)


@gallery_entry("elasticity", title="Elasticity", resolution=10, seconds=90)
def elasticity() -> RunConfig:
    """The stress in a body with a void that is pulled upwards, from its shape alone."""
    return small(
        "elasticity",
        ElasticityConfig(train=800, test=100, source="generated"),
        TRAINING.model_copy(update={"epochs": 16}),
    )


@gallery_entry("pipe", title="Pipe flow", resolution=33, seconds=65)
def pipe() -> RunConfig:
    """The speed along a curved pipe, from the shape of the pipe alone."""
    return small(
        "pipe",
        PipeConfig(train=300, test=50, stride=2, source="generated"),
        TRAINING.model_copy(update={"epochs": 40}),
        stem="conv",
    )


@gallery_entry("airfoil", title="Airfoil", resolution=67, seconds=170)
def airfoil() -> RunConfig:
    """The Mach number of the air around a wing at 0.8 times the speed of sound, from its shape alone."""
    return small(
        "airfoil",
        AirfoilConfig(train=160, test=20, source="generated"),
        TRAINING.model_copy(update={"epochs": 70, "lr": 3e-3, "clip": 1.0}),
        stem="conv",
        heads=4,
    )


@gallery_entry("plasticity", title="Plasticity", resolution=21, seconds=135)
def plasticity() -> RunConfig:
    """The deformation of a steel block under a die, from the shape of the die and the time."""
    return small(
        "plasticity",
        PlasticityConfig(train=160, test=20, coords="aligned", die="aligned", source="generated"),
        TRAINING.model_copy(update={"epochs": 16, "lr": 1e-2, "batch": 8, "eval_batch": 2}),
        Timed(channels=4),
        stem="conv",
        time=True,
    )


@gallery_entry("meshes", title="Meshes of any size", resolution=10, seconds=60)
def meshes() -> RunConfig:
    """The stress in a pulled plate with a void and its displacement, each plate on its own mesh."""
    plates = CasesConfig(
        targets=("stress", "displacement"),
        globals=("angle",),
        surface="own",
        derived=("distance", "normals"),
        units={"x": "m", "y": "m", "stress": "MPa", "displacement": "mm", "angle": "degree"},
        train=200,
        test=20,
    )
    training = {"epochs": 30, "lr": 3e-3, "loss": LossConfig(scaled=True), "eval_batch": 1}
    return small("meshes", plates, TRAINING.model_copy(update=training))


@gallery_entry("ns", title="Navier–Stokes", resolution=64, seconds=105)
def navier_stokes() -> RunConfig:
    """The vorticity of a periodic flow in the next five frames, from the last five frames."""
    return small(
        "ns",
        NavierStokesConfig(train=120, test=20, frames_in=5, frames_out=5, source="generated"),
        TRAINING.model_copy(update={"epochs": 16, "batch": 2, "lr": 3e-3, "weight_decay": 1e-6}),
        Rollout(forcing="teacher"),
        stem="conv",
    )


@gallery_entry("burgers", title="Burgers' equation", resolution=32, seconds=50)
def burgers() -> RunConfig:
    """A field over space and time, from its values at a fifth of the points, drawn at random."""
    return small(
        "burgers",
        BurgersConfig(train=500, test=50, val=1, source="generated"),
        TRAINING.model_copy(update={"epochs": 14, "lr": 1e-3, "optimizer": "adam", "weight_decay": 0.0}),
        Completion(ratio=0.2),
        name="cross-linearno",
        width=64,
        depth=1,
        heads=8,
        slices=32,
    )


@gallery_entry("airfrans", title="AirfRANS", resolution=32, seconds=150, scheme="sa")
def airfrans() -> RunConfig:
    """The turbulent flow around an airfoil of any shape, its lift and drag, from shape, speed and angle."""
    data = AirfransConfig(train=32, test=6, holdout=0, nodes=5000, source="generated")
    loss = LossConfig(kind="benchmark", scaled=True, reduction="mean")
    training = {"epochs": 60, "batch": 2, "points": 1500, "loss": loss, "eval_batch": 1}
    return small("airfrans", data, TRAINING.model_copy(update=training), temperature=None, mlp_ratio=2)


@gallery_entry("shapenet-car", title="Cars", resolution=40, seconds=150)
def shapenet_car() -> RunConfig:
    """The pressure on a car body and the velocity around it, from its shape alone."""
    return small(
        "shapenet-car",
        ShapeNetCarConfig(train=8, test=2, statistics="separate", source="generated"),
        TRAINING.model_copy(
            update={
                "epochs": 45,
                "batch": 1,
                "lr": 3e-3,
                "weight_decay": 1e-2,
                "clip": 1.0,
                "eval_batch": 1,
                "loss": LossConfig(kind="benchmark"),
            }
        ),
    )
