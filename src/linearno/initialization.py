"""Open the data, build the untrained surrogate and check the whole setup."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from linearno.core.errors import UserError
from linearno.data import DATASETS, DataConfig, FieldData, FieldSpec, Scaler, Splits
from linearno.data.availability import how_to_generate
from linearno.data.generation.card import verify_hashes
from linearno.inference.bundle import Bundle, load
from linearno.inference.bundle_files import require_rebuildable
from linearno.inference.training_ranges import TrainingRanges
from linearno.meshes import CasesConfig
from linearno.meshes.cases import CaseSplits
from linearno.models import build_model
from linearno.nn.protocol import SelfFitting, model_name
from linearno.run_config import RunConfig
from linearno.training import Task, TrainingConfig, TrainingSetup
from linearno.training.setup import require_values, split_validation

MAX_LISTED_WEIGHTS = 5

log = logging.getLogger(__name__)


def open_splits(config: DataConfig) -> Splits:
    """Load the splits. Generated sets must match the hashes on their card."""
    splits = DATASETS[config.name].open(config)
    for part in (splits.train, splits.test):
        part.check()
    if splits.source.startswith("generated"):
        verify_hashes(config.root, how=how_to_generate(config.name, config.root))
    log.info("data: %s", splits.source)
    return splits


def untrained(config: RunConfig, splits: Splits) -> tuple[Bundle, TrainingSetup]:
    """The surrogate of a run with its initial weights, and the setup to train it."""
    bundle, setup = initialize(
        lambda spec: build_model(config.model, spec),
        splits.train,
        config.training,
        task=config.task,
        seed=config.seed,
        recipe=config.recipe,
        init_from=config.init_from,
        metric=next(iter(config.metrics.values())),
        loss=config.benchmark.loss,
    )
    require_rebuildable(bundle, splits.train, config.training.points)
    for name, metric in config.metrics.items():
        require_values(f"metric {name}", metric, splits.train)
    if isinstance(config.data, CasesConfig):
        fields = config.data.mesh_fields
        parameters = [channel for name in fields.globals for channel in fields.channels(name)]
        patches = splits.patches if isinstance(splits, CaseSplits) else ()
        ranges = TrainingRanges.of(splits.train, parameters, patches)
        bundle = replace(bundle, mesh_fields=fields, ranges=ranges)
    return bundle, setup


def initialize(
    build: Callable[[FieldSpec], nn.Module],
    data: FieldData,
    config: TrainingConfig,
    *,
    task: Task,
    seed: int,
    recipe: str,
    init_from: str | None = None,
    **objectives: Any,
) -> tuple[Bundle, TrainingSetup]:
    """Split off validation samples, fit the scaler on the others, build the model and check the setup.

    Args:
        build: builds the model from the `FieldSpec` of one model call.
        data: training and validation samples.
        config: optimiser, schedule, loss and protocol.
        task: how samples become model calls.
        seed: random seed of the initial weights, the split and random draws.
        recipe: name of the recipe.
        init_from: run folder whose weights initialise the model.
        objectives: `metric` and `loss` of the `TrainingSetup`.
    """
    torch.manual_seed(seed)
    task.require_packed(data)
    split_seed = seed if config.validation_seed is None else config.validation_seed
    train, validation = split_validation(data, config.validation, split_seed)
    spec = task.spec(data.spec)
    scaler = Scaler.fit(spec, task.scaling_batch(train.everything(), spec))
    coords = data.coords if data.shared else None
    model, precision = build(spec), config.eval_precision
    bundle = Bundle(model, scaler, data.spec, coords, recipe, seed, precision, task, data.shared_aux)
    if init_from is not None and isinstance(model, SelfFitting):
        raise UserError(f"init_from: model {model_name(model)!r} is fitted in closed form; leave it out")
    if init_from is not None:
        warm_start(bundle, Path(init_from))
    setup = TrainingSetup(model, scaler, train, config, validation, task, seed, **objectives)
    setup.check()
    return bundle, setup


def warm_start(bundle: Bundle, folder: Path) -> None:
    """Load those weights of another run whose name and shape agree with the model.

    Its scaler is used as well if both runs have the same fields, since the weights were trained with it.
    """
    source = load(folder)
    if members := source.members:
        source = members[bundle.seed % len(members)]
    old, new = source.model.state_dict(), bundle.model.state_dict()
    loaded = {name: old[name] for name in new if name in old and old[name].shape == new[name].shape}
    if not loaded:
        raise UserError(f"init_from={folder}: none of its weights has a name and shape of this model")
    bundle.model.load_state_dict(new | loaded)
    log.info("init_from: loaded %d of %d tensors from %s", len(loaded), len(new), folder)
    for name in sorted(new.keys() - loaded.keys())[:MAX_LISTED_WEIGHTS]:
        log.info("init_from: %s is initialised randomly", name)
    parts = ("coords", "inputs", "outputs", "standardised")
    if all(getattr(source.call_spec, part) == getattr(bundle.call_spec, part) for part in parts):
        bundle.scaler.load_state_dict(source.scaler.state_dict())
        log.info("init_from: using the scaler of %s", folder)
