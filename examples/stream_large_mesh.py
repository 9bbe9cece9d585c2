"""Evaluate a model on a large mesh in chunks, within a memory budget, with the result of one call.

python examples/stream_large_mesh.py   a few seconds on two cores
"""

import torch

from linearno import LinearNO
from linearno.inference.streaming import Streamer


def main(points: int = 200_000) -> None:
    torch.manual_seed(0)
    model = LinearNO(coords=3, inputs=1, outputs=2, width=32, depth=3, heads=4, slices=16).eval()
    coords, inputs = torch.rand(points, 3), torch.rand(points, 1)

    streamer = Streamer(model, memory="64MB")
    plan = streamer.plan(points)  # decided before any work; one line of error if nothing fits
    streamed = streamer.forward(coords, inputs)  # (N, 3), (N, 1) → (N, 2)

    with torch.no_grad():
        whole = model(coords[None], inputs[None])[0]
    difference = ((streamed - whole).abs().max() / whole.abs().max()).item()
    print(f"{points:,} points in chunks of {plan.chunk:,}, features kept: {plan.keep}")
    print(f"largest difference from one call, relative to the largest value: {difference:.1e}")


if __name__ == "__main__":
    main()
