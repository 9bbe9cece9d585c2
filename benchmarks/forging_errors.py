"""Split the error of a run on Plasticity into rigid sliding of the blocks and the remainder."""

from typing import Annotated

import numpy as np
import typer

from benchmarks.cli.shared import OutOption, SetOption, keep_record
from linearno.cli.shared import DeviceOption, RunArgument, console
from linearno.core.config import override
from linearno.core.device import resolve_device
from linearno.data.plasticity import CHANNELS
from linearno.inference.bundle import load
from linearno.initialization import open_splits
from linearno.metrics import relative_l2
from linearno.reproduce.records import new_record
from linearno.reproduce.run_records import data_identity, run_id
from linearno.run_folder import open_run
from linearno.solvers.forging import DIE_LOWEST, DIE_TRAVEL, DURATION, FRAMES, INTERVAL, TOP
from linearno.training.history import read_history


def forging_errors(
    run: RunArgument,
    set_: SetOption = None,
    device: DeviceOption = "auto",
    id: Annotated[str | None, typer.Option(help="id of the record; study/slide/RECIPE by default")] = None,
    out: OutOption = None,
) -> None:
    """Split the error of a run on Plasticity into rigid sliding of the blocks and the remainder.

    The slide of a block in a frame is the mean displacement of its points along the plane.

    Example:

      python -m benchmarks forging-errors runs/plasticity-linearno --out results
    """
    config, target = override(open_run(run), set_ or []), resolve_device(device)
    splits = open_splits(config.data)
    predictions = load(run, device).predict_data(splits.test, batch=1)
    truth = splits.test.targets
    errors = relative_l2(predictions, truth)
    difference, displacement = (
        part.unflatten(-1, (-1, len(CHANNELS))) for part in (predictions - truth, truth)
    )
    slide, slide_error = (part[..., 2].mean(dim=1) for part in (displacement, difference))  # S T
    share = (len(truth[0]) * slide_error.square().sum() / difference[..., 2:].square().sum()).item()
    die = splits.test.inputs
    assert die is not None
    depth = DIE_TRAVEL * (FRAMES - 1) * INTERVAL / DURATION - (
        DIE_LOWEST - TOP
    )  # of the die's tip in the last frame
    contact_share = (die < die.amin(dim=1, keepdim=True) + depth).double().mean(dim=(1, 2))
    details = {
        "samples": len(truth),
        "relative_l2": {"mean": errors.mean().item(), "max": errors.max().item()},
        "training_loss": read_history(run / "history.jsonl")[-1].loss,
        "slide": slide.abs().mean(dim=0).tolist(),
        "slide_apart": slide_error.abs().mean(dim=0).tolist(),
        "with_the_part_of_the_die_that_touches": float(np.corrcoef(contact_share, errors.log())[0, 1]),
    }
    console.print(f"{share:.0%} of the squared error in displacements is an error of the slide")
    for frame in (5, 10, 15, 19):
        console.print(
            f"frame {frame}: slide {slide.abs().mean(0)[frame]:.4f} mm, "
            f"error {slide_error.abs().mean(0)[frame]:.4f} mm"
        )
    record = new_record(
        id or run_id(config).replace("train/", "study/slide/"),
        share,
        "of the squared error",
        device=target,
        recipe=config.recipe,
        epochs=config.training.epochs,
        seed=config.seed,
        data=data_identity(config.data, splits.source),
        details=details,
    )
    keep_record(record, out)
