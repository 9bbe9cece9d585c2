"""How many runs to train at a time on the GPUs of this machine."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from linearno.core.device import resolve_device
from linearno.reproduce.paper_settings import BENCHMARKS
from linearno.reproduce.plan import Planned

SMALL_STEP = 4000  # points of a batch, below which one training leaves most of a GPU idle
JOBS_PER_GPU = 6  # of small steps, through MPS
MPS_PIPES = "/tmp/nvidia-mps"


def default_jobs(runs: Sequence[Planned], device: str) -> int:
    """One job for each GPU; several where NVIDIA MPS is running and all steps are small; one on a CPU.

    Without MPS the kernels of several processes on one GPU take turns, and packing gains little.
    """
    if find_spec("distributed") is None or resolve_device(device).type != "cuda":
        return 1
    gpus = 1 if ":" in device else torch.cuda.device_count()
    packed = JOBS_PER_GPU if mps_is_running() and all(map(has_small_steps, runs)) else 1
    return max(1, min(len(runs), gpus * packed))


def mps_is_running() -> bool:
    """Whether the control daemon of NVIDIA MPS listens where CUDA processes of this environment look."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS_PIPES)) / "control").exists()


def has_small_steps(run: Planned) -> bool:
    known = BENCHMARKS.get(run.config.data.name)
    return known is not None and known.points * run.config.training.batch <= SMALL_STEP
