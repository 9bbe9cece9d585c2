"""Plan of a generated set, and the record of its progress."""

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from linearno.core.atomic_io import read_json
from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.data.generation.card import CARD, Card, read_card

PROGRESS = "progress.json"
Split = Literal["train", "test", "val"]
SPLITS: tuple[Split, ...] = ("train", "test", "val")  # the index is part of the key of a random stream
Job = tuple[Split, int]  # a sample: its split and its index in the split
REGENERATE_HINT = "remove the folder and generate again"


class Plan(Config):
    """Settings of a generated set. Equal plans give equal bytes; larger sizes start with the same samples.

    Args:
        seed: seed of all random streams.
        resolution: resolution of the solver.
        sizes: number of samples of each split.
        scheme: scheme of the solver; its default if None.
    """

    seed: NonNegativeInt
    resolution: PositiveInt
    sizes: dict[Split, PositiveInt]
    scheme: str | None = None

    def __str__(self) -> str:
        sizes = ", ".join(f"{split} {count}" for split, count in self.sizes.items())
        scheme = f", scheme {self.scheme}" if self.scheme else ""
        return f"seed {self.seed}, resolution {self.resolution}, {sizes}{scheme}"

    @property
    def jobs(self) -> list[Job]:
        """All samples in the order of solution."""
        return [(split, i) for split in SPLITS if split in self.sizes for i in range(self.sizes[split])]


class Progress(Config):
    """Record of an unfinished set: the first `done` jobs of the plan are on disk.

    Args:
        plan: plan of the complete set.
        done: number of finished samples.
        device: name of the device that solved them, from `card_device`.
        equation: equation of the generator; None in records of older versions, which cannot be resumed.
        solver: numerical method of the generator.
    """

    plan: Plan
    done: int
    device: str = "cpu"
    equation: str | None = None
    solver: str | None = None


def read_progress(root: Path) -> Progress | None:
    """Plan and progress of the set in `root`, finished or not; None if there is none."""
    try:
        if (root / CARD).exists():
            card = read_card(root, how=REGENERATE_HINT)
            plan = _plan_of(card)
            equations = {"equation": card.equation, "solver": card.solver}
            return Progress(plan=plan, done=len(plan.jobs), device=card.device, **equations)
        return read_progress_record(root) if (root / PROGRESS).exists() else None
    except OSError as error:
        raise UserError(f"cannot read {root}: {error.strerror}; choose another folder") from None


def read_progress_record(root: Path) -> Progress:
    """Read the progress record of an unfinished set."""
    try:
        return Progress.make(read_json(root / PROGRESS, how=REGENERATE_HINT))
    except UserError as error:
        raise UserError(f"{root / PROGRESS} cannot be read ({error}); {REGENERATE_HINT}") from None


def describe_unfinished(root: Path) -> str | None:
    """Describe an interrupted generation in `root`; None if there is none."""
    if (root / CARD).exists() or (progress := read_progress(root)) is None:
        return None
    return f"its generation stopped after {progress.done} of {len(progress.plan.jobs)} samples"


def require_same(root: Path, name: str, start: Progress) -> None:
    """Raise if the finished set in `root` differs from the set of `start`."""
    card = read_card(root, how=REGENERATE_HINT)
    plan = _plan_of(card)
    if (card.name, plan) != (name, start.plan):
        raise UserError(f"{root} holds another set ({card.name}: {plan}); remove it or choose another folder")
    require_same_equations(root, card, start)
    missing = [name for name in card.files if not (root / name).exists()]
    if missing:
        raise UserError(f"{root} has a card but not {missing[0]}; {REGENERATE_HINT}")
    (root / PROGRESS).unlink(missing_ok=True)


def require_same_equations(root: Path, existing: Card | Progress, start: Progress) -> None:
    """Raise if a set was generated with another equation or solver."""
    if (existing.equation, existing.solver) != (start.equation, start.solver):
        raise UserError(
            f"{root} was generated with another equation or solver; remove it, or choose another --out"
        )


def _plan_of(card: Card) -> Plan:
    return Plan.make(card.model_dump(include=set(Plan.model_fields)))
