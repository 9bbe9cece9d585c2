import pytest

from linearno.core.errors import UserError
from linearno.training import TrainingConfig


def test_the_defaults_are_the_published_darcy_settings():
    config = TrainingConfig()
    assert (config.epochs, config.batch, config.eval_batch) == (500, 4, 1)
    assert (config.optimizer, config.lr, config.betas, config.weight_decay) == (
        "adamw",
        1e-3,
        (0.9, 0.999),
        1e-6,
    )
    assert (config.clip, config.schedule, config.schedule_every) == (1.0, "onecycle", "step")
    assert (config.ema, config.validation, config.loss.reduction) == (None, 0, "sum")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("epochs", 0, "epochs: .*greater than 0"),
        ("lr", 0.0, "lr: .*greater than 0"),
        ("lr", float("inf"), "lr: .*finite"),
        ("clip", -1.0, "clip: .*greater than 0"),
        ("weight_decay", -1e-5, "weight_decay: .*greater than or equal to 0"),
        ("betas", (0.9, 1.0), r"betas: expected two decays in \[0, 1\)"),
        ("ema", 1.0, "ema: expected a decay between 0 and 1, such as 0.999"),
        ("validation", -1, "validation: .*greater than or equal to 0"),
        ("accumulate", 0, "accumulate: .*greater than 0"),
        ("schedule", "linear", "schedule: .*'onecycle', 'cosine', 'step' or 'constant'"),
        ("loss", {"gradient_weight": -0.1}, "loss.gradient_weight: .*greater than or equal to 0"),
        ("epoch", 3, "epoch: no such field; did you mean 'epochs'"),
        ("points", 0, "points: .*greater than 0"),
        ("keep_surface", True, "keep_surface=true says which points to take: set points"),
    ],
)
def test_nonsense_is_refused_in_one_helpful_line(field, value, message):
    with pytest.raises(UserError, match=message) as error:
        TrainingConfig.make({field: value})
    assert "\n" not in str(error.value)


def test_a_config_survives_json():
    config = TrainingConfig(ema=0.99, clip=None, betas=(0.8, 0.9))
    assert TrainingConfig.model_validate_json(config.model_dump_json()) == config
