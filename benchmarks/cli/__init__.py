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
        "own-openfoam": Verb("own_cases:own_openfoam", "Train on OpenFOAM cases as they were written"),
        "own-network": Verb("own_cases:own_network", "Record a network on these cases"),
        "own-coverage": Verb("own_cases:own_coverage", "Measure the coverage of prediction intervals"),
    },
    "Solvers": {
        "generation": Verb("generation:generation", "Time the generation of a set"),
        "own-generate": Verb("own_cases:own_generate", "Run 36 OpenFOAM cases of an airfoil"),
        "navier-stokes-schemes": Verb(
            "navier_stokes_schemes:navier_stokes_schemes", "Compare schemes and grids"
        ),
        "airfoil-flows": Verb("airfoil_flows:airfoil_flows", "Compare flows with the published flows"),
        "naca0012": Verb("airfoil_cases:naca0012", "Compare NACA 0012 with NASA's values"),
        "airfrans-surfaces": Verb(
            "airfoil_cases:airfrans_surfaces", "Compare pressures with surfaces of AirfRANS"
        ),
        "random-airfoils": Verb("airfoil_cases:random_airfoils", "Compare random airfoils with NeuralFoil"),
        "forging-meshes": Verb("forging_meshes:forging_meshes", "Compare forgings on finer meshes"),
        "lattice-flows": Verb("lattice_flows:lattice_flows", "Compare lattice flows with exact ones"),
        "car-shapes": Verb("car_shapes:car_shapes", "Compare and draw random car bodies"),
        "lattice-cars": Verb("lattice_cars:lattice_cars", "Compare surface pressures of cars"),
    },
    "Service and studio": {
        "serve-load": Verb("serve:serve_load", "Send many requests to a service"),
        "serve-malicious": Verb("serve:serve_malicious", "Send malicious uploads to a service"),
        "studio-latency": Verb("studio:studio_latency", "Time a slider of the studio in a browser"),
    },
    "Records": {
        "results": Verb("cli.results:results", "List the records, or write the tables of the docs"),
        "block-diagrams": Verb("block_diagrams:block_diagrams", "Draw the blocks of the models"),
        "gpu": Verb("gpu:gpu", "Measure and train on a GPU machine for some minutes"),
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
