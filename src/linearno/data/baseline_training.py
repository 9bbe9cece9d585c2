"""Training settings that the published code of a model has on all benchmarks, as changes to a protocol."""

LNO_TRAINING = {
    "batch": 4,
    "betas": (0.9, 0.99),
    "weight_decay": 5e-5,
    "clip": 1000.0,
    "schedule": "onecycle",
    "schedule_every": "step",
    "start_factor": 1e4,
    "warmup": 0.2,
    "loss": {"reduction": "mean"},  # published: relative L2 of standardised fields
}
FLARE_TRAINING = {
    "batch": 2,
    "weight_decay": 1e-5,
    "clip": 1.0,
    "schedule": "onecycle",
    "schedule_every": "step",
    "start_factor": 1e4,
    "warmup": 0.1,
    "ema": 0.999,
    "precision": "fp32",
    "loss": {"reduction": "mean"},
}
