"""Run an experiment: load the data, train the model, evaluate it, write the run folder."""

import time
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch

from linearno.core.device import device_name
from linearno.core.errors import UserError
from linearno.data import FieldData, Splits, relative_l2
from linearno.example_predictions import write_examples, write_test_set
from linearno.inference.bundle import Bundle, load
from linearno.initialization import open_splits, untrained
from linearno.meshes import CasesConfig
from linearno.meshes.cases import CaseSplits
from linearno.metrics.cost import count_flops
from linearno.nn.ensemble import Ensemble
from linearno.nn.protocol import SelfFitting, state_size
from linearno.ops import backend
from linearno.own_case_scores import own_case_scores
from linearno.run_config import RunConfig
from linearno.run_folder import (
    locked_folder,
    member_folder,
    open_run,
    refuse_another_run,
    training_seconds,
    write_results,
)
from linearno.training import EpochRecord, TrainingConfig, fit, parallel
from linearno.training.closed_form import OnEpoch
from linearno.training.predict import constrain, model_call, probe_sample, score

CLOSED_FORM = "fitted in closed form"


def run(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    on_epoch: OnEpoch | None = None,
    deadline: float = inf,
    splits: Splits | None = None,
) -> dict[str, Any]:
    """Train or resume a run, evaluate it once on the test split in physical units, write the run folder.

    Inside `parallel.processes` all processes must call this function; all return the metrics, and the main
    process writes the files.

    Args:
        config: everything that determines the run.
        folder: new run folder, or that of an interrupted run with the same configuration.
        device: device of training and evaluation.
        on_epoch: called after every epoch.
        deadline: `time.monotonic()` after which training stops with a checkpoint and `Interrupted`.
        splits: the data of `config.data`, if they have been opened.
    """
    refuse_another_run(folder, config)
    config.require_task_fits_model()
    config.require_ensemble()
    splits = splits or open_splits(config.data)  # disk → samples
    if config.training.members > 1:
        return _run_ensemble(config, folder, device, on_epoch, deadline, splits)
    bundle, setup = untrained(config, splits)  # model and scaler; all checks precede training
    with locked_folder(folder, config) as fingerprint:
        fit(
            setup,
            device=device,
            folder=folder,
            fingerprint=fingerprint,
            on_epoch=on_epoch,
            deadline=deadline,
        )
        if parallel.is_main_process():
            bundle.save(folder)
        return evaluate(bundle, config, splits, folder)


def _run_ensemble(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    on_epoch: OnEpoch | None,
    deadline: float,
    splits: Splits,
) -> dict[str, Any]:
    """Train or resume each member as a run in `folder`/memberK, and write the ensemble; as `run`."""
    with locked_folder(folder, config):
        for number, member in enumerate(config.members):
            passed = number * config.training.epochs

            def in_order(record: EpochRecord, passed: int = passed) -> None:
                if on_epoch is not None:
                    on_epoch(record.model_copy(update={"epoch": record.epoch + passed}))

            own = member_folder(folder, number)
            config_ = open_run(own) if (own / "config.yaml").exists() else member  # it may have been extended
            run(config_, own, device, in_order, deadline, splits)
        parallel.all_reduce_max(None)  # all processes wait until the last member is written
        bundles = [
            load(member_folder(folder, number), str(device)) for number in range(config.training.members)
        ]
        bundle = replace(bundles[0], model=Ensemble([one.model for one in bundles]), seed=config.seed)
        if parallel.is_main_process():
            bundle.save(folder)
        return evaluate(bundle, config, splits, folder)


def evaluate(bundle: Bundle, config: RunConfig, splits: Splits, folder: Path) -> dict[str, Any]:
    """Evaluate the test split in physical units and write metrics and example predictions to the run folder.

    Returns the content of metrics.json.
    """
    test, batch = _with_training_scale(splits.test, bundle), config.training.eval_batch
    if test is not splits.test:
        splits = splits._replace(test=test)  # a tuple of its fields alone: own cases must keep their names
    if bundle.spec.standardised != test.spec.standardised:
        raise UserError(f"{folder} was imported without the scaler of its data: import it with --data FOLDER")
    metrics = config.metrics | {"relative_l2": config.metrics.get("relative_l2", relative_l2)}
    began = time.perf_counter()
    predictions = bundle.predict_data(test, batch=batch)
    if config.benchmark.constrain is not None:
        predictions = constrain(config.benchmark.constrain, predictions, test)
    seconds = time.perf_counter() - began
    errors, scores = score(predictions, splits, metrics, bundle.task)
    main_metric = next(iter(metrics))
    results = {
        "split": "test",
        "samples": len(test),
        "metric": main_metric,
        **scores,
        "summaries": {
            name: float(summary(predictions, test)) for name, summary in config.benchmark.summaries.items()
        },
        "parameters": state_size(bundle.model),
        "flops": _flops(bundle, test),
        "seconds": {
            "train": training_seconds(folder),
            "evaluate": seconds,
        },
        "data": splits.source,
        "device": device_name(bundle.device),
        "precision": bundle.precision,
        "training_precision": config.training.precision,
        "protocol": CLOSED_FORM if isinstance(bundle.model, SelfFitting) else _protocol(config.training),
    }
    if isinstance(config.data, CasesConfig) and isinstance(splits, CaseSplits):
        results |= own_case_scores(config.data, splits, predictions, folder)
    if parallel.is_main_process():
        names = splits.test_names if isinstance(splits, CaseSplits) else ()
        write_results(folder, results, errors, names)
        figures, benchmark = folder / "figures", config.benchmark
        cells = None if benchmark.cells is None else partial(benchmark.cells, config.data)
        write_examples(
            figures / "cases.npz", bundle, test, predictions, errors[main_metric], batch, cells=cells
        )
        if benchmark.test_set is not None:
            write_test_set(figures / "test_set.npz", benchmark.test_set(predictions, test))
    return results


def _with_training_scale(test: FieldData, bundle: Bundle) -> FieldData:
    """Test samples whose auxiliary field `scale`, if there is one, holds the deviations of the training data.

    Errors of standardised fields then mean the same on all data.
    """
    if test.spec.aux.get("scale") != "sample":
        return test
    scale = bundle.scaler.outputs.std.to(test.targets).expand(len(test), -1)
    return replace(test, aux={**test.aux, "scale": scale})


def _flops(bundle: Bundle, test: FieldData) -> int:
    """Floating-point operations of one model call on the first test sample."""
    sample = probe_sample(bundle.task, test, bundle.device)
    arguments, keywords = model_call(bundle.model, bundle.scaler, sample)
    with backend("plain"):
        return count_flops(bundle.model, *arguments, **keywords)


def _protocol(training: TrainingConfig) -> str:
    """Which epoch is evaluated, for metrics.json."""
    if training.members > 1:
        single = training.model_copy(update={"members": 1})
        return f"mean of {training.members} members, each: {_protocol(single)}"
    if training.validation:
        return f"best epoch on {training.validation} validation samples held out of train"
    return "last epoch, no validation (the paper's protocol)"
