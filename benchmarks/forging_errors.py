"""Of what the error of a run on Plasticity consists: how far blocks slide, and the rest.

python -m benchmarks forging-errors runs/plasticity-linearno [--set data.root=elsewhere] [--out results]

A block slides by the mean of its displacements along the plane, one number a frame.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.records import new_record, write_record
from benchmarks.run_records import data_identity, run_id
from linearno.core.config import override
from linearno.core.device import resolve_device
from linearno.data.plasticity import CHANNELS
from linearno.experiment import open_run, open_splits
from linearno.inference.bundle import load
from linearno.metrics import relative_l2
from linearno.solvers.forging import DIE_LOWEST, DURATION, FRAMES, INTERVAL, TOP, TRAVEL
from linearno.training.history import read_history


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--id", help="the record's; study/slide/RECIPE by default")
    parser.add_argument("--out", type=Path, help="write the record into this folder")
    options = parser.parse_args()
    config, device = override(open_run(options.run), options.changes), resolve_device(options.device)
    splits = open_splits(config.data)
    answers = load(options.run, options.device).answer(splits.test, batch=1)
    truth = splits.test.targets
    errors = relative_l2(answers, truth)
    away, moved = (part.unflatten(-1, (-1, len(CHANNELS))) for part in (answers - truth, truth))
    slid, slid_apart = (part[..., 2].mean(dim=1) for part in (moved, away))  # S T
    squares, of_slide = away[..., 2:].square().sum(dim=(1, 2, 3)), len(truth[0]) * slid_apart.square().sum(1)
    share = (of_slide.sum() / squares.sum()).item()
    die = splits.test.inputs
    assert die is not None
    depth = TRAVEL * (FRAMES - 1) * INTERVAL / DURATION - (DIE_LOWEST - TOP)  # of its tip in the last frame
    touches = (die < die.amin(dim=1, keepdim=True) + depth).double().mean(dim=(1, 2))
    details = {
        "samples": len(truth),
        "relative_l2": {"mean": errors.mean().item(), "max": errors.max().item()},
        "training_loss": read_history(options.run / "history.jsonl")[-1].loss,
        "slide": slid.abs().mean(dim=0).tolist(),
        "slide_apart": slid_apart.abs().mean(dim=0).tolist(),
        "with_the_part_of_the_die_that_touches": float(np.corrcoef(touches, errors.log())[0, 1]),
    }
    print(f"{share:.0%} of the squared error in displacements is that of sliding blocks")
    for frame in (5, 10, 15, 19):
        print(f"frame {frame}: {slid.abs().mean(0)[frame]:.4f} mm, {slid_apart.abs().mean(0)[frame]:.4f} off")
    if options.out:
        record = new_record(
            options.id or run_id(config).replace("train/", "study/slide/"),
            share,
            "of the squared error",
            device=device,
            recipe=config.recipe,
            epochs=config.training.epochs,
            seed=config.seed,
            data=data_identity(config.data, splits.source),
            details=details,
        )
        print(f"record: {write_record(options.out, record)}")


if __name__ == "__main__":
    main()
