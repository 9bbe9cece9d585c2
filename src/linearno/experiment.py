"""The spine: disk → sample → batch → model → metric, read downwards.

Run folder   config.yaml, metrics.json, per_sample.csv, history.jsonl, model.safetensors + model.json,
             checkpoint/, figures/
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator, NonNegativeInt, SerializeAsAny, model_validator
from torch import Tensor

from linearno.bundle import Bundle
from linearno.core.artifacts import alone_in, writable_folder, write_json, write_text, write_whole
from linearno.core.config import Config, first_difference, read_yaml, write_yaml
from linearno.core.device import describe
from linearno.core.errors import UserError, require
from linearno.core.registry import Registry
from linearno.data import DATASETS, DataConfig, FieldData, Layout, Sample, Scaler, Splits
from linearno.data.card import require_untouched
from linearno.data.sources import how_to_make
from linearno.metrics import relative_l2
from linearno.metrics.slices import attention_rank, most_used
from linearno.models import CONFIGS, build_model
from linearno.models.cross_linearno import CrossLinearNOConfig
from linearno.nn import ModelConfig
from linearno.training import (
    TASKS,
    Completion,
    EpochRecord,
    Task,
    Timed,
    TrainingConfig,
    fit,
    parallel,
)
from linearno.training.fit import hold_out, require_trainable
from linearno.training.history import read_history
from linearno.training.predict import draw_for_test, scores
from linearno.training.summary import by_field, mean_field_error, summary

IN_TRAINING = "another process is training in {root}; wait, or choose another --out"

log = logging.getLogger(__name__)


def _chosen(field: str, kind: Callable[[str], type[Config]]) -> BeforeValidator:
    """Read a part of the configuration as the class that its own `name` asks for."""

    def choose(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if not isinstance(value.get("name"), str):
            raise UserError(f"{field}.name: missing or not text; it says which {field} is meant")
        try:
            return kind(value["name"]).make(value)
        except UserError as error:
            raise UserError(f"{field}.{error}" if ": " in str(error) else str(error)) from None

    return BeforeValidator(choose)


class RunConfig(Config):
    """All that determines a run. The device is not part of it: a run may move."""

    recipe: str
    seed: NonNegativeInt = 0
    data: Annotated[SerializeAsAny[DataConfig], _chosen("data", lambda name: DATASETS[name].config)]
    model: Annotated[SerializeAsAny[ModelConfig], _chosen("model", CONFIGS.__getitem__)]
    task: Annotated[SerializeAsAny[Task], _chosen("task", TASKS.__getitem__)] = Task()
    training: TrainingConfig

    @model_validator(mode="after")
    def _model_fits_task(self) -> "RunConfig":
        timed, tells = isinstance(self.task, Timed), getattr(self.model, "time", False)
        if timed != tells:
            does = "asks for frames by their time" if timed else "knows no times"
            raise ValueError(f"task={self.task.name} {does}: set model.time={'true' if timed else 'false'}")
        completes = isinstance(self.model, CrossLinearNOConfig)
        if isinstance(self.task, Completion) != completes:
            fits = "task.name=completion" if completes else "model.name=cross-linearno"
            raise ValueError(f"task={self.task.name} does not fit model={self.model.name}: set {fits}")
        return self

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


Recipe = Callable[[], RunConfig]
RECIPES: Registry[Recipe] = Registry("recipe")


def run(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    on_epoch: Callable[[EpochRecord], None] | None = None,
) -> dict[str, Any]:
    """Train, evaluate once on test in physical units, and write the run folder; or go on with one.

    Inside `parallel.processes` all processes call this together; all get the metrics, the first one writes.
    The folder is locked from the first write to the last.
    """
    with ExitStack() as lock:
        return _run(config, folder, device, on_epoch, lock)


def _run(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    on_epoch: Callable[[EpochRecord], None] | None,
    lock: ExitStack,
) -> dict[str, Any]:
    refuse_another_run(folder, config)
    splits = open_splits(config.data)  # disk → samples
    config.task.require_packed(splits.train)
    bundle = untrained(config, splits)
    require_trainable(bundle.model, splits.train, config.training, config.task)
    if parallel.writes():
        lock.enter_context(alone_in(writable_folder(folder), busy=IN_TRAINING))
        refuse_another_run(folder, config)  # again: another process may have finished one meanwhile
        write_yaml(writable_folder(folder) / "config.yaml", config)  # all is well: the folder is ours
    fit(  # never sees test
        bundle.model,
        bundle.scaler,
        splits.train,
        config.training,
        seed=config.seed,
        device=device,
        folder=folder,
        fingerprint=config.fingerprint,
        task=config.task,
        on_epoch=on_epoch,
    )
    if parallel.writes():
        bundle.save(folder)
    return evaluate(bundle, config, splits, folder)


def untrained(config: RunConfig, splits: Splits) -> Bundle:
    """The model with its first weights, and scaling fitted on what is trained on, only."""
    torch.manual_seed(config.seed)
    seen, _ = hold_out(splits.train, config.training.validation, config.seed)
    asked = config.task.spec(splits.train.spec)  # what one call of the model takes and gives
    scaler = Scaler.fit(asked, config.task.example(seen.everything(), asked))
    coords = splits.train.coords if splits.train.shared else None
    return make_bundle(config, Layout(splits.train.spec, coords), scaler)


def make_bundle(config: RunConfig, layout: Layout, scaler: Scaler) -> Bundle:
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


def refuse_another_run(folder: Path, config: RunConfig) -> None:
    """A folder that holds a run of another configuration is refused before any work."""
    path = folder / "config.yaml"
    if path.exists() and (there := read_yaml(path, RunConfig)) != config:
        what = first_difference(there.model_dump(mode="json"), config.model_dump(mode="json"))
        raise UserError(
            f"{folder} holds a run of another configuration ({what}); choose another --out or remove it"
        )


def open_splits(config: DataConfig) -> Splits:
    """In memory; generated ones only as they were made, for a run says which they are."""
    splits = DATASETS[config.name].open(config)
    if splits.source.startswith("generated"):
        require_untouched(config.root, how=how_to_make(config.name, config.root))
    log.info("data: %s", splits.source)
    return splits


def open_run(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    how = "give a run folder, as `linearno train` writes it"
    require(folder, how=how)
    return read_yaml(require(folder / "config.yaml", how=how), RunConfig)


def evaluate(bundle: Bundle, config: RunConfig, splits: Splits, folder: Path) -> dict[str, Any]:
    """Score the test split in physical units, one value a sample; write the numbers and the cases."""
    if bundle.spec.scaled != splits.test.spec.scaled:
        raise UserError(f"{folder} does not know the scaling of its data: import its weights with --data")
    began = time.perf_counter()
    predictions = bundle.answer(splits.test, batch=config.training.eval_batch)
    seconds = time.perf_counter() - began
    task, names = config.task, list(dict.fromkeys([config.task.metric, "relative_l2"]))
    errors = {name: scores(name, predictions, splits.test) for name in names}
    metrics = {
        "split": "test",
        "samples": len(splits.test),
        "metric": task.metric,
        **{name: summary(values) for name, values in errors.items()},
        **_over_time(task, predictions, splits.test.targets),
        **by_field(task, predictions, splits),
        "mean_field": {name: mean_field_error(splits, name) for name in names},
        "parameters": sum(weight.numel() for weight in bundle.model.parameters()),
        "seconds": {
            "train": sum(record.seconds for record in read_history(folder / "history.jsonl")),
            "evaluate": seconds,
        },
        "data": splits.source,
        "device": describe(bundle.device),
        "precision": bundle.precision,
        "training_precision": config.training.precision,
        "protocol": _protocol(config.training),
    }
    if parallel.writes():
        write_json(folder / "metrics.json", metrics)
        rows = zip(*(values.tolist() for values in errors.values()), strict=True)
        lines = [",".join([str(i), *(f"{error:.9g}" for error in row)]) + "\n" for i, row in enumerate(rows)]
        write_text(folder / "per_sample.csv", ",".join(["sample", *names]) + "\n" + "".join(lines))
        batch = config.training.eval_batch
        write_cases(
            folder / "figures" / "cases.npz", bundle, splits.test, predictions, errors[task.metric], batch
        )
    return metrics


def _over_time(task: Task, predictions: Tensor, targets: Tensor) -> dict[str, Any]:
    """Of frames also the error of each: the mean over the samples, in the order of time."""
    if task.frame is None:
        return {}
    pairs = zip(predictions.split(task.frame, -1), targets.split(task.frame, -1), strict=True)
    return {"relative_l2_by_frame": [relative_l2(*pair).mean().item() for pair in pairs]}


def write_cases(
    path: Path, bundle: Bundle, test: FieldData, predictions: Tensor, errors: Tensor, batch: int = 1
) -> None:
    """The numbers behind the pictures: best, median and worst case, and the slices of the median one.

    Of a completed field instead of its slices the points that were observed in each case. Cases of different
    sizes stand one after another, with their offsets.
    """
    order = errors.argsort()
    index = order[torch.tensor([0, (len(order) - 1) // 2, -1])]
    case = test.batch(index)
    fields = {
        "coords": case.coords,
        "targets": case.targets,
        "predictions": replace(test, targets=predictions).batch(index).targets,
    }
    if case.inputs is not None:
        fields["inputs"] = case.inputs
    if case.segments is not None:
        fields = {name: part[0] for name, part in fields.items()} | {"offsets": case.segments}
    arrays = {"sample": index, "error": errors[index], **fields}
    if test.spec.grid is not None:
        arrays["grid"] = torch.tensor(test.spec.grid)  # of these data: a run may be asked on a finer one
    if isinstance(bundle.task, Completion):
        drawn = (
            draw_for_test(bundle.task, test.coords.shape[-2], bundle.seed, int(i) // batch) for i in index
        )
        arrays["observed"] = torch.stack([points for points in drawn if points is not None])
    else:
        arrays |= _slice_maps(bundle, test.batch(index[1:2]))
    plain = {name: tensor.cpu().numpy() for name, tensor in arrays.items()}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **plain)

    write_whole(path, write)


@torch.no_grad()
def _slice_maps(bundle: Bundle, sample: Sample) -> dict[str, Tensor]:
    sample, scaler = bundle.task.call(sample).to(bundle.device), bundle.scaler
    when = {} if sample.time is None else {"time": sample.time}
    layers = bundle.model.slice_weights(
        scaler.coords.encode(sample.coords), scaler.encode_inputs(sample.inputs), **when
    )
    maps: dict[str, list[Tensor]] = {}
    for phi, psi in ((phi[0], psi[0]) for phi, psi in layers):  # H N M
        found = {
            "phi_dominant": phi.argmax(dim=-1).to(torch.uint16),
            "psi_dominant": psi.argmax(dim=-1).to(torch.uint16),
            "phi_slice": most_used(phi),
            "psi_slice": most_used(psi),
            "rank": attention_rank(phi, psi),
        }
        for name, tensor in found.items():
            maps.setdefault(name, []).append(tensor)
    return {name: torch.stack(parts) for name, parts in maps.items()} | {
        "slices": torch.tensor(phi.shape[-1])
    }


def _protocol(training: TrainingConfig) -> str:
    if training.validation:
        return f"best epoch on {training.validation} validation samples held out of train"
    return "last epoch, no validation (the paper's protocol)"
