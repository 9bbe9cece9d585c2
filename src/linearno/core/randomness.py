"""Random generators that depend on a seed and a spawn key only, not on earlier draws."""

import numpy as np
import torch


def numpy_generator(seed: int, *key: int) -> np.random.Generator:
    """NumPy generator for `key`, such as the indices of a split and a sample."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def torch_generator(seed: int, *key: int) -> torch.Generator:
    """PyTorch generator on the CPU for `key`, such as an epoch."""
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)
