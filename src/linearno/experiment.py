"""Run an experiment: load the data, train the model, evaluate it, write the run folder."""

import time
from math import inf
from pathlib import Path
from typing import Any

import torch

from linearno.core.device import device_name
from linearno.core.errors import UserError
from linearno.data import FieldData, Splits, relative_l2
from linearno.example_predictions import write_examples
from linearno.inference.bundle import Bundle
from linearno.initialization import open_splits, untrained
from linearno.metrics.cost import count_flops
from linearno.nn.protocol import SelfFitting, state_size
from linearno.ops import backend
from linearno.run_config import RunConfig
from linearno.run_folder import locked_folder, refuse_another_run, write_results
from linearno.training import TrainingConfig, fit, parallel
from linearno.training.closed_form import OnEpoch
from linearno.training.history import read_history
from linearno.training.predict import model_call, probe_sample, score

CLOSED_FORM = "fitted in closed form"


def run(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    on_epoch: OnEpoch | None = None,
    deadline: float = inf,
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
    """
    refuse_another_run(folder, config)
    config.require_task_fits_model()
    splits = open_splits(config.data)  # disk → samples
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


def evaluate(bundle: Bundle, config: RunConfig, splits: Splits, folder: Path) -> dict[str, Any]:
    """Evaluate the test split in physical units and write metrics and example predictions to the run folder.

    Returns the content of metrics.json.
    """
    test, batch = splits.test, config.training.eval_batch
    if bundle.spec.standardised != test.spec.standardised:
        raise UserError(f"{folder} was imported without the scaler of its data: import it with --data FOLDER")
    metrics = config.metrics | {"relative_l2": config.metrics.get("relative_l2", relative_l2)}
    began = time.perf_counter()
    predictions = bundle.predict_data(test, batch=batch)
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
            "train": sum(record.seconds for record in read_history(folder / "history.jsonl")),
            "evaluate": seconds,
        },
        "data": splits.source,
        "device": device_name(bundle.device),
        "precision": bundle.precision,
        "training_precision": config.training.precision,
        "protocol": CLOSED_FORM if isinstance(bundle.model, SelfFitting) else _protocol(config.training),
    }
    if parallel.is_main_process():
        write_results(folder, results, errors)
        examples = folder / "figures" / "cases.npz"
        write_examples(examples, bundle, test, predictions, errors[main_metric], batch)
    return results


def _flops(bundle: Bundle, test: FieldData) -> int:
    """Floating-point operations of one model call on the first test sample."""
    sample = probe_sample(bundle.task, test, bundle.device)
    arguments, keywords = model_call(bundle.model, bundle.scaler, sample)
    with backend("plain"):
        return count_flops(bundle.model, *arguments, **keywords)


def _protocol(training: TrainingConfig) -> str:
    """Which epoch is evaluated, for metrics.json."""
    if training.validation:
        return f"best epoch on {training.validation} validation samples held out of train"
    return "last epoch, no validation (the paper's protocol)"
