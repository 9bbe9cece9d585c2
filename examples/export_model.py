"""Export a trained model as one file, torch.export or ONNX, and run the file without linearno.

python examples/export_model.py        about half a minute on two cores
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

import linearno
from linearno.core.errors import UserError
from linearno.inference.export import export_run


def main(formats: tuple[str, ...] = ("torch", "onnx")) -> None:
    rng = np.random.default_rng(0)
    x, f = rng.random((40, 2)), rng.random((16, 40, 1))
    data = {
        "coords": x,
        "inputs": f,
        "targets": 100 + 5 * f,
    }  # the scaling is exported too
    small = {"width": 16, "depth": 2, "heads": 2, "slices": 8}
    surrogate = linearno.fit("linearno", data, settings=small, epochs=3)
    points, inputs = rng.random((60, 2)), rng.random((1, 60, 1))  # another mesh, of another size
    expected = surrogate.predict(inputs, points)[..., 0]
    arrays = {"coords": points[None].astype(np.float32), "input_0": inputs[..., 0].astype(np.float32)}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        surrogate.save(folder / "run")
        if "torch" in formats:
            made = export_run(folder / "run", folder / "model.pt2", "torch")
            program = torch.export.load(made.path).module()
            (out,) = program(**{key: torch.tensor(value) for key, value in arrays.items()}).values()
            report("model.pt2", out.detach().numpy(), expected)
        if "onnx" in formats:
            try:
                made = export_run(folder / "run", folder / "model.onnx", "onnx")
                import onnxruntime
            except (UserError, ImportError) as missing:
                print(f"no ONNX: {missing}")
                return
            session = onnxruntime.InferenceSession(made.path)
            report("model.onnx", session.run(None, arrays)[0], expected)


def report(name: str, out: np.ndarray, expected: np.ndarray) -> None:
    difference = np.abs(out - expected).max() / np.abs(expected).max()
    print(f"{name}: {out.shape[1]} points, largest difference from the model: {difference:.1e}")


if __name__ == "__main__":
    main()
