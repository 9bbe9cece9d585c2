"""Make records that need a GPU, one after another. Stopped, or out of time, the same command goes on.

python -m benchmarks gpu-records                                   what can be asked for
python -m benchmarks gpu-records train/ns/transolver train/burgers20/linearno --seconds 3000 --out mine

A record that is there is not made again. A training makes its data first, where they are not there; data lie
in data/, runs in runs/. A set whose time is recorded is made in one piece, into an empty folder.
"""

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

LINEARNO = [sys.executable, "-m", "linearno"]
OUT_OF_TIME = 75  # the exit code of a try that is worth another one
GENERATED = {
    "airfoil": [],
    "ns": [],
    "plasticity": ["--train", "907", "--scheme", "fine"],
}  # 987 with the test's
TRAINED = {
    "burgers1/linearno": ["training.epochs=100"],
    "burgers20/linearno": [],
    "darcy/linearno": [],
    "darcy/transolver": [],
    "elasticity/linearno": [],
    "elasticity/transolver": [],
    "pipe/linearno": [],
    "airfoil/linearno": [],
    "ns/linearno": ["training.epochs=100"],
    "ns/transolver": ["training.epochs=100", "training.clip=1", "seed=1"],  # unclipped, its loss collapses
    "plasticity/linearno": ["training.epochs=108"],
    "plasticity/linearno-mended": ["training.epochs=108", "data.coords=aligned", "data.die=aligned"],
}
RECIPES = {"plasticity/linearno-mended": "plasticity/linearno"}  # where the record has another name
STEPS = ("airfoil", "darcy", "elasticity", "million", "ns", "pipe")
COMPILED = "darcy"  # the step that is also timed beside torch.compile, which takes minutes
KNOWN = (
    [f"generate/{name}" for name in GENERATED]
    + [f"train/{recipe}" for recipe in TRAINED]
    + [f"bench/step/{shape}" for shape in STEPS]
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", nargs="*", help="their ids, in the order in which they are made")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--out", type=Path, default=Path("results"), help="records that are there stay")
    options = parser.parse_args()
    if unknown := [record for record in options.records if record not in KNOWN]:
        parser.error(f"{', '.join(unknown)}: not known; run it without arguments for a list")
    if not options.records:
        print("\n".join(KNOWN))
    until = time.monotonic() + options.seconds
    for record in options.records:
        if (options.out / f"{record}.json").exists():
            print(f"{record}: there", flush=True)
            continue
        for command in commands_of(record, options.out):
            print(f"{record}: {' '.join(command[1:])}", flush=True)
            if code := run(command, until):
                return code
    return 0


def commands_of(record: str, out: Path) -> list[list[str]]:
    kind, name = record.split("/", 1)
    if kind == "generate":
        script, folder = str(Path(__file__).with_name("generation.py")), f"data/{name}"
        options = ["--device", "cuda", "--keep", folder, "--id", record, "--out", str(out)]
        return [[sys.executable, script, name, *GENERATED[name], *options]]
    if kind == "bench":
        shape = name.split("/")[-1]
        options = [] if shape == COMPILED else ["--no-compile"]
        return [[*LINEARNO, "bench", "step", "--shape", shape, *options, "--out", str(out)]]
    data = name.split("/")[0].rstrip("0123456789")
    changes = [word for change in TRAINED[name] for word in ("--set", change)]
    run = ["--run", f"runs/{name.replace('/', '-')}", "--out", str(out)]
    make = [*LINEARNO, "data", "generate", data, "--full", *GENERATED.get(data, [])]
    train = [*LINEARNO, "bench", "train", RECIPES.get(name, name), *changes, "--id", record, *run]
    return [train] if Path("data", data, "card.json").exists() else [make, train]


def run(command: list[str], until: float) -> int:
    """The exit code; at the end of the time the command is asked to stop, which keeps what it has done."""
    child = subprocess.Popen(command)
    try:
        left = until - time.monotonic()
        return child.wait(None if left == float("inf") else max(left, 0))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        child.wait()
        return OUT_OF_TIME
    except KeyboardInterrupt:
        child.wait()  # it has heard it too
        return 130


if __name__ == "__main__":
    sys.exit(main())
