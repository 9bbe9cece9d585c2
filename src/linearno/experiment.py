"""The spine: disk → batch → model → metric, read downwards.

Run folder   config.yaml, metrics.json, per_sample.csv, history.jsonl, model.safetensors + model.json,
             checkpoint/, figures/
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linearno.best_and_worst import write_cases
from linearno.core.atomic_io import folder_lock, writable_folder, write_json, write_text
from linearno.core.config import first_difference, read_yaml, read_yaml_values, write_yaml
from linearno.core.device import device_name
from linearno.core.errors import UserError, require
from linearno.data import DATASETS, DataConfig, FieldData, SampleLayout, Scaler, Splits, relative_l2
from linearno.data.availability import how_to_generate
from linearno.data.generation.card import verify_hashes
from linearno.inference.bundle import Bundle, load
from linearno.inference.bundle_files import require_rebuildable
from linearno.metrics import norms
from linearno.metrics.cost import count_flops
from linearno.models import build_model
from linearno.ops import backend
from linearno.run_config import RunConfig, config_fingerprint
from linearno.training import EpochRecord, Task, TrainingConfig, fit, parallel
from linearno.training.checkpoint import Checkpoints
from linearno.training.error_summary import by_field, mean_field_error, summary
from linearno.training.fit import split_validation
from linearno.training.history import read_history
from linearno.training.predict import call_arguments, probe_batch, sample_errors
from linearno.training.requirements import require_output, require_trainable, require_values

IN_TRAINING = "another process is training in {root}; wait, or choose another --out"

log = logging.getLogger(__name__)


def run(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    on_epoch: Callable[[EpochRecord], None] | None = None,
) -> dict[str, Any]:
    """Train, evaluate once on test in physical units, and write the run folder; or resume one.

    Inside `parallel.processes` all processes call this together; all get the metrics, the first one writes.
    """
    refuse_another_run(folder, config)
    config.require_task_fits_model()
    fingerprint = stored_fingerprint(folder) or config.fingerprint
    splits = open_splits(config.data)  # disk → samples
    bundle = untrained(config, splits)
    with locked(folder, config):  # all checks are done: from here on files are written
        fit(  # never sees test
            bundle.model,
            bundle.scaler,
            splits.train,
            config.training,
            seed=config.seed,
            device=device,
            folder=folder,
            fingerprint=fingerprint,
            task=config.task,
            metric=next(iter(config.metrics.values())),
            loss=config.benchmark.loss,
            on_epoch=on_epoch,
        )
        if parallel.is_main_process():
            bundle.save(folder)
        return evaluate(bundle, config, splits, folder)


@contextmanager
def locked(folder: Path, config: RunConfig) -> Iterator[None]:
    """Hold the run folder and write its configuration, in the process that writes."""
    if not parallel.is_main_process():
        yield
        return
    with folder_lock(writable_folder(folder), busy=IN_TRAINING):
        refuse_another_run(folder, config)  # again: another process may have finished one meanwhile
        if not (folder / "config.yaml").exists():
            write_yaml(folder / "config.yaml", config)
        yield


def stored_fingerprint(folder: Path) -> str | None:
    """The fingerprint of the configuration in a run folder, with just the fields that it was written with."""
    path = folder / "config.yaml"
    return config_fingerprint(read_yaml_values(path)) if path.exists() else None


def untrained(config: RunConfig, splits: Splits) -> Bundle:
    """The model with initial weights, scaling fitted on the training samples, and every check passed."""
    config.require_task_fits_model()
    torch.manual_seed(config.seed)
    config.task.require_packed(splits.train)
    seen, _ = split_validation(splits.train, config.training.validation, config.seed)
    asked = config.task.spec(splits.train.spec)  # what one call of the model takes and gives
    scaler = Scaler.fit(asked, config.task.example(seen.everything(), asked))
    coords = splits.train.coords if splits.train.shared else None
    bundle = make_bundle(config, SampleLayout(splits.train.spec, coords), scaler)
    bundle = replace(bundle, aux=splits.train.shared_aux)
    if config.init_from is not None:
        bundle = warm_start(bundle, Path(config.init_from))
    require_trainable(bundle.model, splits.train, config.training, config.task, config.benchmark.loss)
    require_output(bundle.model, bundle.scaler, splits.train, config.training, config.task)
    require_rebuildable(bundle, splits.train, config.training.points)
    for name, measure in config.metrics.items():
        require_values(f"metric {name}", measure, splits.train)
    if config.benchmark.loss is not None and config.training.loss.kind == "benchmark":
        require_values("the loss", config.benchmark.loss, splits.train, gradient=True)
    return bundle


def make_bundle(config: RunConfig, layout: SampleLayout, scaler: Scaler) -> Bundle:
    """A model with fresh weights for data of that layout."""
    return Bundle(
        build_model(config.model, config.task.spec(layout.spec)),
        scaler,
        layout.spec,
        layout.coords,
        config.recipe,
        config.seed,
        config.training.eval_precision,
        config.task,
    )


def warm_start(bundle: Bundle, folder: Path) -> Bundle:
    """Start from the weights of another run: those with the same name and shape.

    Its scaling is kept if both have the same fields, since the weights were trained with it.
    """
    source = load(folder)
    theirs, ours = source.model.state_dict(), bundle.model.state_dict()
    taken = {name: theirs[name] for name in ours if name in theirs and theirs[name].shape == ours[name].shape}
    if not taken:
        raise UserError(f"init_from={folder}: none of its weights has a name and shape of this model")
    bundle.model.load_state_dict(ours | taken)
    log.info("init_from: %d of %d tensors come from %s", len(taken), len(ours), folder)
    for name in sorted(ours.keys() - taken.keys())[:5]:
        log.info("init_from: %s starts afresh", name)
    parts = ("coords", "inputs", "outputs", "standardised")
    if all(getattr(source.asked, part) == getattr(bundle.asked, part) for part in parts):
        bundle.scaler.load_state_dict(source.scaler.state_dict())
        log.info("init_from: the scaling of %s is kept", folder)
    return bundle


def extend_run(folder: Path, epochs: int) -> RunConfig:
    """Prepare a finished run for more epochs; the configuration to continue it with.

    Weights, optimiser state and history are kept. The schedule continues at the same step of the longer one:
    with `schedule=constant` the result equals that of an uninterrupted run.
    """
    config = open_run(folder)
    done = len(read_history(folder / "history.jsonl"))
    if done < config.training.epochs:
        raise UserError(
            f"{folder} has done {done} of {config.training.epochs} epochs: finish it with "
            f"`linearno train {folder}` before it gets more"
        )
    training = config.training.model_copy(update={"epochs": config.training.epochs + epochs})
    longer = config.model_copy(update={"training": training})
    stored = read_yaml_values(folder / "config.yaml")
    checkpoints = Checkpoints(folder / "checkpoint", config_fingerprint(stored), config.checkpoint_settings)
    checkpoints.extend(longer.fingerprint, longer.checkpoint_settings)
    write_yaml(folder / "config.yaml", longer)
    return longer


def refuse_another_run(folder: Path, config: RunConfig) -> None:
    """Refuse a folder that holds a run of another configuration, before any work."""
    path = folder / "config.yaml"
    if path.exists() and (there := read_yaml(path, RunConfig)) != config:
        what = first_difference(there.model_dump(mode="json"), config.model_dump(mode="json"))
        raise UserError(
            f"{folder} holds a run of another configuration ({what}); choose another --out or remove it"
        )


def open_splits(config: DataConfig) -> Splits:
    """Load both splits. Generated sets must match the hashes on their card."""
    splits = DATASETS[config.name].open(config)
    for part in (splits.train, splits.test):
        part.check()
    if splits.source.startswith("generated"):
        verify_hashes(config.root, how=how_to_generate(config.name, config.root))
    log.info("data: %s", splits.source)
    return splits


def open_run(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    how = "give a run folder, as `linearno train` writes it"
    require(folder, how=how)
    return read_yaml(require(folder / "config.yaml", how=how), RunConfig)


def evaluate(bundle: Bundle, config: RunConfig, splits: Splits, folder: Path) -> dict[str, Any]:
    """Score the test split in physical units, one value per sample; write the numbers and the cases."""
    test, task = splits.test, config.task
    if bundle.spec.standardised != test.spec.standardised:
        raise UserError(f"{folder} does not know the scaling of its data: import its weights with --data")
    began = time.perf_counter()
    predictions = bundle.answer(test, batch=config.training.eval_batch)
    seconds = time.perf_counter() - began
    measures = config.metrics | {"relative_l2": config.metrics.get("relative_l2", relative_l2)}
    errors = {name: sample_errors(metric, predictions, test) for name, metric in measures.items()}
    first = next(iter(measures))
    metrics = {
        "split": "test",
        "samples": len(test),
        "metric": first,
        **{name: summary(values) for name, values in errors.items()},
        **_over_time(task, predictions, test.targets),
        **by_field(task, predictions, splits),
        "summaries": {name: float(of(predictions, test)) for name, of in config.benchmark.summaries.items()},
        "mean_field": {name: mean_field_error(splits, metric) for name, metric in measures.items()},
        "parameters": sum(weight.numel() for weight in bundle.model.parameters()),
        "flops": _flops(bundle, test),
        "seconds": {
            "train": sum(record.seconds for record in read_history(folder / "history.jsonl")),
            "evaluate": seconds,
        },
        "data": splits.source,
        "device": device_name(bundle.device),
        "precision": bundle.precision,
        "training_precision": config.training.precision,
        "protocol": _protocol(config.training),
    }
    if parallel.is_main_process():
        write_json(folder / "metrics.json", metrics)
        rows = zip(*(values.tolist() for values in errors.values()), strict=True)
        lines = [",".join([str(i), *(f"{error:.9g}" for error in row)]) + "\n" for i, row in enumerate(rows)]
        write_text(folder / "per_sample.csv", ",".join(["sample", *errors]) + "\n" + "".join(lines))
        batch, cases = config.training.eval_batch, folder / "figures" / "cases.npz"
        write_cases(cases, bundle, test, predictions, errors[first], batch)
    return metrics


def _over_time(task: Task, predictions: Tensor, targets: Tensor) -> dict[str, Any]:
    """The error of each frame, where outputs are frames: the mean over the samples, in order of time."""
    if task.frame is None:
        return {}
    pairs = zip(predictions.split(task.frame, -1), targets.split(task.frame, -1), strict=True)
    return {"relative_l2_by_frame": [norms.relative_l2(*pair).mean().item() for pair in pairs]}


def _flops(bundle: Bundle, test: FieldData) -> int:
    """Floating-point operations of one call of the model, for the first test sample."""
    model, scaler, device = bundle.model, bundle.scaler, bundle.device
    call = probe_batch(bundle.task, test, device)
    coords, inputs = scaler.coords.encode(call.coords), scaler.encode_inputs(call.inputs)
    with backend("plain"):
        return count_flops(model, coords, inputs, **call_arguments(model, scaler, call))


def _protocol(training: TrainingConfig) -> str:
    if training.validation:
        return f"best epoch on {training.validation} validation samples held out of train"
    return "last epoch, no validation (the paper's protocol)"
