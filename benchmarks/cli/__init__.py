"""Command line of the measurements: `python -m benchmarks VERB …`."""

import typer

from linearno.cli.lazy import SETTINGS, LazyGroup, Verb

VERBS = {
    "Speed": {
        "attention": Verb("cli.bench:attention", "Time one attention layer"),
        "step": Verb("cli.bench:step", "Time a training step of LinearNO"),
        "model-steps": Verb("model_steps:model_steps", "Time a training step of every model"),
        "step-check": Verb("step_check:step_check", "Compare step times with reference times"),
        "scale": Verb("cli.scale:scale", "Measure large meshes"),
        "lattice-speed": Verb("lattice_speed:lattice_speed", "Time the lattice Boltzmann solver"),
        "darcy-cpu": Verb("darcy_cpu:darcy_cpu", "Compare with plain PyTorch on a CPU"),
    },
    "Accuracy": {
        "train": Verb("cli.bench:train", "Train a recipe and record its test error"),
        "weights": Verb("weights:weights", "Publish the bundle of a run"),
        "precision": Verb("precision:precision", "Compare the errors of two precisions"),
        "forging-errors": Verb("forging_errors:forging_errors", "Split the error on Plasticity"),
    },
    "Solvers": {
        "generation": Verb("generation:generation", "Time the generation of a set"),
        "navier-stokes-schemes": Verb(
            "navier_stokes_schemes:navier_stokes_schemes", "Compare schemes and grids"
        ),
        "airfoil-flows": Verb("airfoil_flows:airfoil_flows", "Compare flows with the published flows"),
        "forging-meshes": Verb("forging_meshes:forging_meshes", "Compare forgings on finer meshes"),
        "lattice-flows": Verb("lattice_flows:lattice_flows", "Compare lattice flows with exact ones"),
        "car-shapes": Verb("car_shapes:car_shapes", "Compare and draw random car bodies"),
        "lattice-cars": Verb("lattice_cars:lattice_cars", "Compare surface pressures of cars"),
    },
    "Records": {
        "results": Verb("cli.results:results", "List the records, or write the tables of the docs"),
        "gpu-records": Verb("gpu_records:gpu_records", "Measure records that need a GPU"),
    },
}


class Verbs(LazyGroup):
    package, sections = "benchmarks", VERBS


app = typer.Typer(
    name="python -m benchmarks",
    cls=Verbs,
    help="Measure speed, memory and accuracy, and write the tables of README.md and docs/.\n\n"
    "With `--out results` a verb writes its measurement as a record; `results` lists all records.",
    add_completion=False,
    no_args_is_help=True,
    **SETTINGS,
)


@app.callback()
def options() -> None:
    pass
