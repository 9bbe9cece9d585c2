"""Tiny trainings for tables of the paper."""

from linearno.reproduce.cells import Selection
from linearno.reproduce.execute import execute_all
from linearno.reproduce.items import cells_of
from linearno.reproduce.plan import pending, stored_records

TINY = ("model.width=8", "model.heads=2", "model.depth=1", "training.precision=fp32", "training.batch=2")
SMALL = Selection(benchmarks=("elasticity",), epochs=2, samples=(6, 3), changes=TINY)
QUIET = {"device": "cpu", "small": True, "tell": lambda text: None}
COMMAND = [word for change in TINY for word in ("--set", change)]


def run_all(item, out, selection=SMALL, minutes=None, **more):
    planned = pending(cells_of(item, selection), selection, stored_records(out / "records"))
    execute_all(planned, out, out / "records", minutes=minutes, **QUIET | more)
    return planned
