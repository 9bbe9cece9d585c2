"""How long a benchmark's whole set takes, through the solver and onto the disk.

python -m benchmarks generation darcy [--workers 2] [--device cuda] [--out results]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.records import new_record, write_record
from linearno.core.atomic_io import read_json
from linearno.data import DATASETS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[name for name in DATASETS if DATASETS[name].generate])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train", type=int, help="samples to train on; the protocol's by default")
    parser.add_argument("--test", type=int, help="samples to test on; the protocol's by default")
    parser.add_argument("--resolution", type=int, help="as published by default")
    parser.add_argument("--scheme", help="of the solver; its usual one by default")
    parser.add_argument("--out", type=Path, help="write the record into this folder")
    parser.add_argument("--keep", type=Path, help="an empty folder for the set; it is thrown away by default")
    parser.add_argument("--id", help="the record's; generate/NAME by default, on a GPU generate/NAME_device")
    options = parser.parse_args()
    if options.keep and options.keep.exists() and any(options.keep.iterdir()):
        parser.error(f"{options.keep} is not empty: a set is timed as a whole; remove it or keep elsewhere")
    benchmark = DATASETS[options.name]
    assert benchmark.generate is not None
    asked = {split: getattr(options, split) for split in ("train", "test") if getattr(options, split)}
    settings = {
        "sizes": benchmark.config.make({}).sizes | asked,
        "resolution": options.resolution or benchmark.resolution,
        "seed": 0,
        "workers": options.workers,
        "device": options.device,
        "scheme": options.scheme,
    }
    samples, done, began = sum(settings["sizes"].values()), 0, time.perf_counter()

    def tick(more: int) -> None:
        nonlocal done
        done += more
        took = time.perf_counter() - began
        print(f"\r{done} of {samples} samples, {took:.0f} s ", end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(dir=".") as temporary:
        folder = options.keep or Path(temporary)
        benchmark.generate(folder, **settings, tick=tick)
        seconds = time.perf_counter() - began
        card = read_json(folder / "card.json", how="")
    print(file=sys.stderr)
    how = f"{options.workers} workers" if options.device == "cpu" else card["device"]
    print(f"{samples} samples in {seconds:.1f} s with {how}: {samples / seconds:.1f}/s")
    if options.out:
        details = settings | {"device": card["device"], "seconds": seconds, "files": card["files"]}
        usual = f"generate/{options.name}" + ("" if options.device == "cpu" else "_device")
        record = new_record(
            options.id or usual,
            seconds,
            "s",
            device=torch.device(options.device),
            seed=settings["seed"],
            details=details,
        )
        print(f"record: {write_record(options.out, record)}")


if __name__ == "__main__":
    main()
