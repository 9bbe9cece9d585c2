"""Measure `linearno` on 36 OpenFOAM cases of an airfoil, as a user would run it."""

import csv
import math
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Annotated

import torch
import typer
from scipy.stats import qmc

from benchmarks.cli.shared import OutOption, keep_record
from linearno.cli.shared import console, progress_bar, user_errors
from linearno.cli.train import choose_and_train
from linearno.core.atomic_io import read_json
from linearno.core.errors import UserError
from linearno.data import FieldData, Splits
from linearno.inference.intervals import coverage
from linearno.initialization import open_splits, untrained
from linearno.meshes import CasesConfig
from linearno.meshes.config import read_dataset
from linearno.recipes.cases import cases_run
from linearno.recipes.model_choice import CHOICE, CLASSICAL, cross_validated, field_errors
from linearno.reproduce.records import new_record
from linearno.run_folder import open_run

EXAMPLE = Path("/usr/share/doc/openfoam-examples/examples/incompressible/simpleFoam/airFoil2D")
SETTINGS = Path("/usr/share/openfoam")  # of Debian's package
CASES, SEED = 36, 0
ANGLES, SPEEDS = (-4.0, 10.0), (15.0, 40.0)  # degrees, m/s
INFLOW = "uniform (25.75 3.62 0)"  # of the example
TEST_CASES, SPLITS = 7, 10

DatasetArgument = Annotated[Path, typer.Argument(help="dataset.yaml, written by `linearno init`")]


def own_generate(
    out: Annotated[Path, typer.Argument(help="folder of the cases")],
    example: Annotated[
        Path, typer.Option(help="folder of the example airFoil2D", show_default=False)
    ] = EXAMPLE,
) -> None:
    """Run simpleFoam and foamToVTK on 36 cases of airFoil2D with different angle and speed.

    It needs Debian's packages openfoam and openfoam-examples. A finished case is kept.

    Example:

      python -m benchmarks own-generate sims/
    """
    with user_errors(), progress_bar("simpleFoam", CASES) as advance:
        if not example.is_dir() or shutil.which("simpleFoam") is None:
            raise UserError("install the packages openfoam and openfoam-examples, or give --example")
        rows = [
            (ANGLES[0] + (ANGLES[1] - ANGLES[0]) * a, SPEEDS[0] + (SPEEDS[1] - SPEEDS[0]) * b)
            for a, b in qmc.LatinHypercube(2, seed=SEED).random(CASES)
        ]
        out.mkdir(parents=True, exist_ok=True)
        with (out / "cases.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["case", "angle [degree]", "speed [m/s]"])
            writer.writerows([f"case_{i:02d}", f"{a:.4f}", f"{v:.4f}"] for i, (a, v) in enumerate(rows))
        for number, (angle, speed) in enumerate(rows):
            _run_case(example, out / f"case_{number:02d}", round(angle, 4), round(speed, 4))
            advance(1)


def _run_case(example: Path, case: Path, angle: float, speed: float) -> None:
    if (case / "VTK").is_dir():
        return
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(example, case)
    radians = math.radians(angle)
    inflow = f"uniform ({speed * math.cos(radians):.6f} {speed * math.sin(radians):.6f} 0)"
    for path, old, new in (
        (case / "0/U", INFLOW, inflow),
        (case / "system/controlDict", "writeInterval   50", "writeInterval   500"),
    ):
        path.write_text(path.read_text().replace(old, new))
    settings = {"WM_PROJECT_DIR": str(SETTINGS), "FOAM_ETC": str(SETTINGS / "etc")}
    for command in (["simpleFoam"], ["foamToVTK", "-latestTime"]):
        with (case / f"log.{command[0]}").open("w") as log:
            done = subprocess.run(
                [*command, "-case", str(case)], stdout=log, stderr=log, env=os.environ | settings, check=False
            )
        if done.returncode:
            raise UserError(f"{case}: {command[0]} failed; see its log there")


def own_openfoam(
    dataset: DatasetArgument,
    runs: Annotated[Path, typer.Option(help="folder of the run")] = Path("runs/own-openfoam"),
    out: OutOption = None,
) -> None:
    """Let `linearno train dataset.yaml` choose the model of the 36 cases, and record its test errors.

    Example:

      python -m benchmarks own-openfoam dataset.yaml --out results
    """
    with user_errors():
        began, processor = time.perf_counter(), time.process_time()
        metrics, folder = choose_and_train(read_dataset(dataset), runs, "cpu", 15.0, None)
        seconds, busy = time.perf_counter() - began, time.process_time() - processor
        errors = {name: field["mean"] for name, field in metrics["relative_l2_by_field"].items()}
        record = new_record(
            "own/openfoam/airfoil2d",
            max(errors.values()),
            "relative L2",
            against={"nearest case": max(metrics["nearest_case"].values())},
            recipe=f"cases/{read_json(folder / CHOICE, how='train again')['chosen']}",
            epochs=1,
            seed=0,
            data=f"{CASES} cases of airFoil2D",
            device_minutes=metrics["seconds"]["train"] / 60,
            details={
                "errors": errors,
                "nearest_case": metrics["nearest_case"],
                "mean_field": {n: f["mean_field"] for n, f in metrics["relative_l2_by_field"].items()},
                "quantities": metrics.get("quantities", {}),
                "test_cases": metrics["samples"],
                "seconds_with_reading": seconds,
                "processor_seconds_without_reading": busy,
                "load": os.getloadavg()[0],
                "threads": torch.get_num_threads(),
            },
        )
        console.print(f"{errors}; {seconds:.1f} s, of which this process computed {busy:.1f} s")
        keep_record(record, out)


def own_network(
    run: Annotated[Path, typer.Argument(help="run folder of a network that was trained on the 36 cases")],
    out: OutOption = None,
) -> None:
    """Record the test errors of LinearNO alone, trained with `linearno train dataset.yaml --set …`.

    Example:

      python -m benchmarks own-network runs/cases-linearno --out results
    """
    with user_errors():
        config, metrics = open_run(run), read_json(run / "metrics.json", how="train again")
        errors = {name: field["mean"] for name, field in metrics["relative_l2_by_field"].items()}
        record = new_record(
            "own/openfoam/airfoil2d-linearno",
            max(errors.values()),
            "relative L2",
            against={"nearest case": max(metrics["nearest_case"].values())},
            recipe=config.recipe,
            epochs=config.training.epochs,
            seed=config.seed,
            data=f"{CASES} cases of airFoil2D",
            device_minutes=metrics["seconds"]["train"] / 60,
            details={
                "errors": errors,
                "device": metrics["device"],
                "model": config.model.model_dump(mode="json"),
                "training": config.training.model_dump(mode="json"),
            },
        )
        console.print(f"{errors}")
        keep_record(record, out)


def own_coverage(dataset: DatasetArgument, out: OutOption = None) -> None:
    """Measure the coverage of the 90 % intervals of POD-GP on unseen cases, over ten random splits.

    Example:

      python -m benchmarks own-coverage dataset.yaml --out results
    """
    with user_errors():
        data = read_dataset(dataset)
        cases = _joined(open_splits(data))
        shares, errors = [], []
        for seed in range(SPLITS):
            share, error = _coverage_of_split(data, cases, seed)
            console.print(f"split {seed}: coverage {share}, errors {error}")
            shares.append(share)
            errors.append(error)
        by_channel = {name: mean(share[name] for share in shares) for name in shares[0]}
        record = new_record(
            "own/coverage",
            mean(by_channel.values()),
            "share of values inside",
            recipe=f"cases/{CLASSICAL}",
            data=f"{len(cases)} cases",
            details={
                "level": 0.9,
                "channels": by_channel,
                "splits": shares,
                "errors": errors,
                "test_cases": TEST_CASES,
            },
        )
        console.print(f"mean coverage {record.value:.3f}: {by_channel}")
        keep_record(record, out)


def _joined(splits: Splits) -> FieldData:
    train, test = splits.train, splits.test
    if not train.shared:
        raise UserError("the cases do not share a mesh")
    inputs = None if train.inputs is None or test.inputs is None else torch.cat([train.inputs, test.inputs])
    return replace(train, inputs=inputs, targets=torch.cat([train.targets, test.targets]))


def _coverage_of_split(
    data: CasesConfig, cases: FieldData, seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Coverage by channel and error by field of unseen cases."""
    order = torch.randperm(len(cases), generator=torch.Generator().manual_seed(seed))
    splits = Splits(cases.subset(order[TEST_CASES:]), cases.subset(order[:TEST_CASES]), "")
    intervals = cross_validated(data, splits, seed)
    assert intervals is not None
    bundle, setup = untrained(cases_run(data, CLASSICAL, splits), splits)
    batch = setup.train.everything()
    assert batch.inputs is not None
    setup.model.fit(  # type: ignore[operator]
        bundle.scaler.coords.encode(batch.coords),
        bundle.scaler.inputs.encode(batch.inputs),
        bundle.scaler.outputs.encode(batch.targets),
    )
    found, std = bundle.predict_with_std(splits.test.inputs, splits.test.coords)
    inside = coverage(found - splits.test.targets, intervals.half_widths(std, found))
    names = cases.spec.outputs
    return dict(zip(names, inside.tolist(), strict=True)), field_errors(found, splits.test)
