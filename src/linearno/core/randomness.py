"""Random numbers that depend on a seed and a place, never on what was drawn before."""

import numpy as np
import torch


def numpy_generator(seed: int, *place: int) -> np.random.Generator:
    """The generator of one place (a split and a sample, say), whatever the order of the work."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=place))


def torch_generator(seed: int, *place: int) -> torch.Generator:
    """The same for torch, on the CPU."""
    state = np.random.SeedSequence(seed, spawn_key=place).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)
