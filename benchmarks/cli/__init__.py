"""The command line of the measurements: `python -m benchmarks VERB …`."""

import typer

from benchmarks.cli import bench, reproduce, results, scale

app = typer.Typer(
    name="python -m benchmarks",
    help="Measure speed, memory and accuracy, and write the tables of README.md and docs/.\n\n"
    "With --out results every measurement becomes a record; `results` lists them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(bench.attention)
app.command()(bench.step)
app.command()(bench.train)
app.command()(scale.scale)
app.command()(reproduce.efficiency)
app.command()(reproduce.theorem1)
app.command()(results.results)
