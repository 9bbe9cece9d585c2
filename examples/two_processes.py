"""Train data-parallel with torchrun: two processes share each batch and reach the losses of one process.

python examples/two_processes.py       about half a minute on two cores

On a machine with two GPUs, without `--device=cpu`, each process takes one GPU and NCCL joins them.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

PYTHON = [sys.executable, "-m"]
TORCHRUN = [*PYTHON, "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
SMALL = ["data.train=16", "data.test=4", "data.stride=2", "training.precision=fp32"]
SMALL += ["model.width=16", "model.depth=2", "model.heads=2", "model.slices=8"]


def main(out: Path, epochs: int = 3) -> None:
    data = out / "data"
    sizes = ["--train=16", "--test=4", "--resolution=17"]
    run([*PYTHON, "linearno", "data", "generate", "darcy", *sizes, f"--out={data}"])
    settings = [f"--set={change}" for change in [*SMALL, f"data.root={data}", f"training.epochs={epochs}"]]
    losses = []
    for name, launch in (("one", PYTHON), ("two", TORCHRUN)):
        run(
            [*launch, "linearno", "train", "darcy/linearno", "--device=cpu", *settings, f"--out={out / name}"]
        )
        history = (out / name / "history.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in history])
    for epoch, (one, two) in enumerate(zip(*losses, strict=True), start=1):
        print(f"epoch {epoch}: loss {one:.6f} with one process, {two:.6f} with two")
    difference = max(abs(one - two) / one for one, two in zip(*losses, strict=True))
    print(f"largest relative difference: {difference:.1e}")


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("two_processes"))
    main(parser.parse_args().out)
