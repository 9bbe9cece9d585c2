"""What is to be made of a set, and how much of it is: the record of an unfinished folder, or its card."""

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from linearno.core.atomic_io import read_json
from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.data.generation.card import CARD, Card, read_card

PROGRESS = "progress.json"
Split = Literal["train", "test", "val"]
SPLITS: tuple[Split, ...] = ("train", "test", "val")  # a place here is a place in the random stream
Job = tuple[Split, int]  # a sample's split and its index there


class Plan(Config):
    """What is to be made. The same plan gives the same bytes; a larger one begins with the same samples."""

    seed: NonNegativeInt
    resolution: PositiveInt
    sizes: dict[Split, PositiveInt]
    scheme: str | None = None  # of the solver; its own by default

    def __str__(self) -> str:
        sizes = ", ".join(f"{split} {count}" for split, count in self.sizes.items())
        scheme = f", scheme {self.scheme}" if self.scheme else ""
        return f"seed {self.seed}, resolution {self.resolution}, {sizes}{scheme}"

    @property
    def jobs(self) -> list[Job]:
        """Every sample, in the order in which they are made."""
        return [(split, i) for split in SPLITS if split in self.sizes for i in range(self.sizes[split])]


class Progress(Config):
    """The record of an unfinished folder: the first `done` jobs of the plan are on disk."""

    plan: Plan
    done: int
    device: str = "cpu"
    equation: str | None = None  # none in a record of an older version, which nothing fits
    solver: str | None = None


def read_progress(root: Path) -> Progress | None:
    """The plan of the set in `root` and how much of it is done, if there is one, finished or not."""
    try:
        if (root / CARD).exists():
            card = read_card(root, how="remove the folder and generate again")
            plan = _plan_of(card)
            law = {"equation": card.equation, "solver": card.solver}
            return Progress(plan=plan, done=len(plan.jobs), device=card.device, **law)
        return read_progress_record(root) if (root / PROGRESS).exists() else None
    except OSError as error:
        raise UserError(f"cannot read what is in {root}: {error.strerror}; choose another folder") from None


def _plan_of(card: Card) -> Plan:
    return Plan.make(card.model_dump(include=set(Plan.model_fields)))


def describe_unfinished(root: Path) -> str | None:
    """A clause about a generation that was interrupted in `root`, if there was one."""
    if (root / CARD).exists() or (progress := read_progress(root)) is None:
        return None
    return f"its generation stopped after {progress.done} of {len(progress.plan.jobs)} samples"


def require_same(root: Path, name: str, start: Progress) -> None:
    """The finished set in `root` is the one that `start` would begin."""
    card = read_card(root, how="remove the folder and generate again")
    there = _plan_of(card)
    if (card.name, there) != (name, start.plan):
        raise UserError(f"{root} holds another set ({card.name}: {there}); remove it or choose another place")
    require_same_law(root, card, start)
    missing = [name for name in card.files if not (root / name).exists()]
    if missing:
        raise UserError(f"{root} has a card but not {missing[0]}; remove the folder and generate again")
    (root / PROGRESS).unlink(missing_ok=True)


def require_same_law(root: Path, there: Card | Progress, start: Progress) -> None:
    """A set is of one law: what was begun by another version is not finished by this one."""
    if (there.equation, there.solver) != (start.equation, start.solver):
        raise UserError(
            f"{root} was made by another law or solver than those of this version; remove the folder, or "
            "choose another --out"
        )


def read_progress_record(root: Path) -> Progress:
    how = "remove the folder and generate again"
    try:
        return Progress.make(read_json(root / PROGRESS, how=how))
    except UserError as error:
        raise UserError(f"{root / PROGRESS} cannot be read ({error}); {how}") from None
