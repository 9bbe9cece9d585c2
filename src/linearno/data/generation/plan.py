"""The plan of a generated set, and the record of how much of it is done."""

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
HOW = "remove the folder and generate again"


class Plan(Config):
    """What to generate. The same plan gives the same bytes; a larger one begins with the same samples.

    Args:
        seed: of all random streams.
        resolution: of the solver.
        sizes: number of samples of each split.
        scheme: of the solver; its default if None.
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
        """All samples, in the order in which they are solved."""
        return [(split, i) for split in SPLITS if split in self.sizes for i in range(self.sizes[split])]


class Progress(Config):
    """The record of an unfinished folder: the first `done` jobs of the plan are on disk.

    Args:
        plan: of the whole set.
        done: number of finished samples.
        device: that solved them, as `card_device` names it.
        equation: of the generator; None in records of older versions, which cannot be resumed.
        solver: of the generator.
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
            card = read_card(root, how=HOW)
            plan = _plan_of(card)
            law = {"equation": card.equation, "solver": card.solver}
            return Progress(plan=plan, done=len(plan.jobs), device=card.device, **law)
        return read_progress_record(root) if (root / PROGRESS).exists() else None
    except OSError as error:
        raise UserError(f"cannot read {root}: {error.strerror}; choose another folder") from None


def read_progress_record(root: Path) -> Progress:
    """The record of an unfinished set."""
    try:
        return Progress.make(read_json(root / PROGRESS, how=HOW))
    except UserError as error:
        raise UserError(f"{root / PROGRESS} cannot be read ({error}); {HOW}") from None


def describe_unfinished(root: Path) -> str | None:
    """A clause about an interrupted generation in `root`; None if there is none."""
    if (root / CARD).exists() or (progress := read_progress(root)) is None:
        return None
    return f"its generation stopped after {progress.done} of {len(progress.plan.jobs)} samples"


def require_same(root: Path, name: str, start: Progress) -> None:
    """Refuse the finished set in `root` if it is another one than `start` would begin."""
    card = read_card(root, how=HOW)
    plan = _plan_of(card)
    if (card.name, plan) != (name, start.plan):
        raise UserError(f"{root} holds another set ({card.name}: {plan}); remove it or choose another folder")
    require_same_law(root, card, start)
    missing = [name for name in card.files if not (root / name).exists()]
    if missing:
        raise UserError(f"{root} has a card but not {missing[0]}; {HOW}")
    (root / PROGRESS).unlink(missing_ok=True)


def require_same_law(root: Path, existing: Card | Progress, start: Progress) -> None:
    """Refuse a set that a version with another equation or solver made or began."""
    if (existing.equation, existing.solver) != (start.equation, start.solver):
        raise UserError(
            f"{root} was made by another law or solver than those of this version; remove the folder, or "
            "choose another --out"
        )


def _plan_of(card: Card) -> Plan:
    return Plan.make(card.model_dump(include=set(Plan.model_fields)))
