"""How long the whole Darcy set takes: 1,000 + 200 samples at 421×421, through the solver and onto the disk.

python benchmarks/darcy_generation.py [--workers 2] [--device cuda] [--out results]
"""

import argparse
import tempfile
import time
from pathlib import Path

from linearno.core.artifacts import read_json
from linearno.core.records import new_record, write_record
from linearno.data import DATASETS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--resolution", type=int, default=421)
    parser.add_argument("--out", type=Path, help="write the record into this folder")
    options = parser.parse_args()
    settings = {
        "sizes": {"train": options.train, "test": options.test},
        "resolution": options.resolution,
        "seed": 0,
        "workers": options.workers,
        "device": options.device,
    }
    with tempfile.TemporaryDirectory(dir=".") as folder:
        began = time.perf_counter()
        DATASETS["darcy"].generate(Path(folder), **settings, tick=lambda n: None)
        seconds = time.perf_counter() - began
        card = read_json(Path(folder) / "card.json", how="")
    samples = options.train + options.test
    how = f"{options.workers} workers" if options.device == "cpu" else card["device"]
    print(f"{samples} samples in {seconds:.1f} s with {how}: {samples / seconds:.1f}/s")
    if options.out:
        details = settings | {"device": card["device"], "seconds": seconds, "files": card["files"]}
        name = "generate/darcy" if options.device == "cpu" else "generate/darcy_device"
        record = new_record(name, seconds, "s", seed=settings["seed"], details=details)
        print(f"record: {write_record(options.out, record)}")


if __name__ == "__main__":
    main()
