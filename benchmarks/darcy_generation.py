"""How long the whole Darcy set takes: 1,000 + 200 samples at 421×421, through the solver and onto the disk.

python benchmarks/darcy_generation.py [--workers 2] [--json results/darcy_generation.json]
"""

import argparse
import tempfile
import time
from pathlib import Path

from linearno.core.artifacts import read_json, write_json
from linearno.core.provenance import commit, machine, versions
from linearno.data import DATASETS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--resolution", type=int, default=421)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = {
        "sizes": {"train": options.train, "test": options.test},
        "resolution": options.resolution,
        "seed": 0,
        "workers": options.workers,
    }
    with tempfile.TemporaryDirectory(dir=".") as folder:
        began = time.perf_counter()
        DATASETS["darcy"].generate(Path(folder), **settings, tick=lambda n: None)
        seconds = time.perf_counter() - began
        files = read_json(Path(folder) / "card.json", how="")["files"]
    samples = options.train + options.test
    print(f"{samples} samples in {seconds:.1f} s with {options.workers} workers: {samples / seconds:.1f}/s")
    record = settings | {"seconds": seconds, "files": files, "machine": machine()}
    if options.json:
        write_json(options.json, record | {"versions": versions(), "commit": commit()})


if __name__ == "__main__":
    main()
