"""Build a model from weights that the published LinearNO code saved.

python examples/published_weights.py   a few seconds on two cores

The fixture holds a state dict and the output of the published code for one input.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from linearno import from_published

SAVED = Path(__file__).parents[1] / "tests" / "fixtures" / "published" / "linearno_temp.npz"


def main() -> None:
    with np.load(SAVED) as file:
        arrays = {name: torch.tensor(file[name]) for name in file.files if file[name].ndim}
    weights = {name.removeprefix("sd/"): tensor for name, tensor in arrays.items() if name.startswith("sd/")}

    with tempfile.TemporaryDirectory() as folder:
        torch.save(weights, Path(folder) / "weights.pt")  # as published: torch.save(model.state_dict(), …)
        # Shapes tell family, variant and sizes; the number of heads is not among them. Nothing is unpickled
        # but tensors.
        model = from_published(Path(folder) / "weights.pt", heads=4)

    with torch.no_grad():
        output = model(arrays["in/x"])
    difference = ((output - arrays["out"]).abs().max() / arrays["out"].abs().max()).item()
    print(f"{type(model).__name__} with {sum(p.numel() for p in model.parameters()):,} parameters")
    print(f"largest difference from the published code, relative to the largest value: {difference:.1e}")


if __name__ == "__main__":
    main()
