"""Does a narrower arithmetic cost accuracy? A recipe with a short schedule, each precision with each seed.

python -m benchmarks precision darcy/linearno [--epochs 100] [--seeds 0 1] [--out results]

Runs that are finished are only read, and a stopped one goes on: the same command may be given again.
"""

import argparse
from pathlib import Path

from benchmarks.records import write_record
from benchmarks.run_records import record_of_precisions
from linearno.core.config import override
from linearno.core.device import resolve_device
from linearno.experiment import run
from linearno.recipes import RECIPES


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", choices=list(RECIPES))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "tf32"], help="the first is the record's")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--runs", type=Path, default=Path("runs/precision"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write the record into this folder")
    options = parser.parse_args()
    folders = []
    for seed in options.seeds:
        for precision in options.precisions:
            short = [f"training.epochs={options.epochs}", f"training.precision={precision}", f"seed={seed}"]
            config = override(RECIPES[options.recipe](), [*options.changes, *short])
            folder = options.runs / f"{options.recipe.replace('/', '-')}-{precision}-{seed}"
            metrics = run(config, folder, resolve_device(options.device))
            print(f"{precision}, seed {seed}: {metrics[metrics['metric']]['mean']:.5f}")
            folders.append(folder)
    record = record_of_precisions(folders)
    print(f"{options.precisions[0]} has {record.value:.3f} times the error of {options.precisions[1]}")
    if options.out:
        print(f"record: {write_record(options.out, record)}")


if __name__ == "__main__":
    main()
