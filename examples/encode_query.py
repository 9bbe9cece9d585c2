"""Encode a field on coarse points once, and query the answer at other points, here ten times finer.

python examples/encode_query.py        about ten seconds on two cores
"""

import numpy as np

import linearno

MODES = 3


def load_and_displacement(amplitudes: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f and u (S, N, 1) with -u'' = f at the points x (N, 1): sums of sines."""
    k = np.arange(1, MODES + 1)
    sines = np.sin(np.pi * k * x)
    return (amplitudes @ sines.T)[..., None], ((amplitudes / (np.pi * k) ** 2) @ sines.T)[..., None]


def main(epochs: int = 20) -> None:
    rng = np.random.default_rng(0)
    coarse, fine = np.linspace(0, 1, 48)[:, None], np.linspace(0, 1, 480)[:, None]
    f, u = load_and_displacement(rng.normal(size=(256, MODES)), coarse)
    surrogate = linearno.fit(
        "linearno",
        {"coords": coarse, "inputs": f, "targets": u},
        settings={"width": 64, "depth": 2, "heads": 4, "slices": 8},
        epochs=epochs,
        batch=4,
        lr=5e-3,
        schedule="cosine",
    )
    amplitudes = rng.normal(size=(1, MODES))
    f_coarse, _ = load_and_displacement(amplitudes, coarse)
    f_fine, u_fine = load_and_displacement(amplitudes, fine)

    field = surrogate.encode(coarse, f_coarse)  # reads the 48 points; its states do not grow with them
    predicted = field.query(fine, f_fine)  # any points, as often as needed

    error = np.linalg.norm(predicted - u_fine) / np.linalg.norm(u_fine)
    same = np.abs(field.query(coarse, f_coarse) - surrogate.predict(f_coarse)).max() / np.abs(u).max()
    print(f"relative L2 error at 480 points, encoded from 48: {error:.3f}")
    print(f"largest difference between query and predict at the 48 points: {same:.1e}")


if __name__ == "__main__":
    main()
