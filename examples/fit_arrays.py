"""Train on numpy arrays: from the load of a string to its displacement, -u'' = f with u(0) = u(1) = 0.

python examples/fit_arrays.py          about ten seconds on two cores
"""

import numpy as np

import linearno

POINTS, MODES = 64, 3


def draw(samples: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (N, 1), random loads (S, N, 1) and their exact displacements (S, N, 1)."""
    x = np.linspace(0, 1, POINTS)
    k = np.arange(1, MODES + 1)
    amplitudes = rng.normal(size=(samples, MODES))
    sines = np.sin(np.pi * k * x[:, None])  # (N, K)
    load, displacement = amplitudes @ sines.T, (amplitudes / (np.pi * k) ** 2) @ sines.T
    return x[:, None], load[..., None], displacement[..., None]


def main(epochs: int = 20) -> None:
    rng = np.random.default_rng(0)
    x, f, u = draw(256, rng)
    surrogate = linearno.fit(
        "linearno",
        {"coords": x, "inputs": f, "targets": u},
        settings={"width": 64, "depth": 2, "heads": 4, "slices": 8},
        epochs=epochs,
        batch=4,
        lr=5e-3,
        schedule="cosine",
    )
    _, f_new, u_new = draw(64, rng)
    predicted = surrogate.predict(f_new)  # numpy in, numpy out, in the units of the training data
    error = np.linalg.norm(predicted - u_new, axis=1) / np.linalg.norm(u_new, axis=1)
    print(f"relative L2 error on 64 new loads: {error.mean():.3f}")


if __name__ == "__main__":
    main()
