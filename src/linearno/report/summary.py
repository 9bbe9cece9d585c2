"""Numbers of a page: headline, summary table, provenance."""

from linearno.data import METRICS, metric_title
from linearno.report.formatting import MISSING, capitalise, duration, get_nested, number, text
from linearno.report.html import Markup, details, join, table, tag
from linearno.report.run_folder import Run
from linearno.training import Completion, Rollout, Timed
from linearno.viz.style import run_color

MAX_RUN_COLUMNS = 3  # number of runs above which the summary has a row for each run, not a column
METRIC_DEFINITIONS = {
    "relative_l2": "‖prediction − truth‖ / ‖truth‖ of one sample, over all its points, in physical units. "
    "0 is exact; predicting zero gives 1.",
    "relative_mae": "mean |prediction − truth| / mean |truth| of one sample, over all its points, in "
    "physical units. 0 is exact; 1 is as far off as predicting zero.",
}


def headline(runs: list[Run]) -> Markup:
    """A card for each run: its name and main result."""
    return tag("div", *(_card(run, index) for index, run in enumerate(runs)), class_="cards")


def _card(run: Run, index: int) -> Markup:
    dot = tag("span", class_="dot", style=f"background:{run_color(index)}", aria_hidden="true")
    name = tag("a", run.name, href=f"#run-{index + 1}")
    return tag("div", tag("p", dot, name, class_="name"), main_result(run), class_="card")


def main_result(run: Run) -> Markup:
    """The mean of the main metric, in comparison with the mean-field baseline."""
    error, baseline = (
        get_nested(run.metrics, run.metric, "mean"),
        get_nested(run.metrics, "mean_field", run.metric),
    )
    if error is None:
        return tag("p", "not evaluated yet")
    lines = [
        tag("p", number(error), class_="big"),
        tag("p", f"mean {metric_title(run.metric)}, {evaluated_on(run)}"),
    ]
    if isinstance(baseline, float) and isinstance(error, float) and error > 0:
        ratio = f"{baseline / error:.3g} times lower" if error <= baseline else "no lower"
        lines.append(tag("p", f"{ratio} than the mean-field baseline, {number(baseline)}", class_="quiet"))
    return join(lines)


def summary(runs: list[Run]) -> Markup:
    """Table of results and a glossary."""
    metrics = _metrics(runs)
    columns = {run.name: _summary_rows(run, metrics) for run in runs}
    labels = list(next(iter(columns.values())))
    if len(runs) <= MAX_RUN_COLUMNS:
        rows = [[label, *(facts[label] for facts in columns.values())] for label in labels]
        shown = table(["Run", *columns], rows)
    else:
        shown = table(["Run", *labels], [[name, *facts.values()] for name, facts in columns.items()])
    footnote = tag("p", f"{MISSING}: not contained in the run folder.", class_="quiet")
    unknown = any(MISSING in facts.values() for facts in columns.values())
    return join([shown, *([footnote] if unknown else []), _glossary(runs, metrics)])


def _metrics(runs: list[Run]) -> list[str]:
    """Metrics of the runs, main metrics first."""
    others = (name for name in METRICS if any(name in run.metrics for run in runs))
    return list(dict.fromkeys([*(run.metric for run in runs), *others]))


def _summary_rows(run: Run, metrics: list[str]) -> dict[str, str]:
    """Labels and values of a run in the summary table."""
    errors = {}
    for metric in metrics:
        name = capitalise(metric_title(metric))
        for statistic in ("mean", "median", "max"):
            value = get_nested(run.metrics, metric, statistic)
            errors[f"{name}, {statistic}"] = number(value)
        baseline = get_nested(run.metrics, "mean_field", metric)
        errors[f"Mean-field baseline, {metric_title(metric)}"] = number(baseline)
    return {
        "Recipe": recipe(run),
        "Task": task(run),
        "Model": model_name(run),
        "Parameters (count)": number(run.metrics.get("parameters")),
        "Epochs": epochs(run),
        "Evaluated on": evaluated_on(run),
        **errors,
        **{capitalise(metric_title(name)): number(value) for name, value in _summaries(run).items()},
        "Training time": training_time(run),
        "Device": text(run.metrics.get("device")),
        "Data": text(run.metrics.get("data")),
    }


def _summaries(run: Run) -> dict[str, float]:
    """Metrics of the whole test set, such as a rank correlation."""
    summaries = run.metrics.get("summaries")
    return summaries if isinstance(summaries, dict) else {}


def _glossary(runs: list[Run], metrics: list[str]) -> Markup:
    """Definitions of the terms in the summary table."""
    terms = {
        capitalise(metric_title(metric)): METRIC_DEFINITIONS[metric]
        for metric in metrics
        if metric in METRIC_DEFINITIONS
    }
    terms["Mean-field baseline"] = (
        "the simplest prediction: the mean of the training solutions for every sample. "
        "A useful model is well below it."
    )
    if any(isinstance(run.task, Rollout) for run in runs):
        terms["Rollout"] = "each frame is predicted from the previous ones; predictions are fed back."
    if any(isinstance(run.task, Timed) for run in runs):
        terms["Time-conditioned"] = (
            "each frame is predicted from the inputs and its time; nothing is fed back."
        )
    if any(isinstance(run.task, Completion) for run in runs):
        terms["Field reconstruction"] = "the whole field is predicted from its values at a few random points."
    return tag("dl", *(part for term in terms for part in (tag("dt", term), tag("dd", terms[term]))))


def task(run: Run) -> str:
    """Short description of the task."""
    if isinstance(run.task, Completion):
        return f"field reconstruction from {100 * run.task.ratio:g} % of the points"
    if isinstance(run.task, Rollout):
        inputs, outputs = (len(get_nested(run.card, "spec", part) or []) for part in ("inputs", "outputs"))
        channels = run.task.channels
        frames = f": {outputs // channels} frames from {inputs // channels}" if outputs else ""
        return f"rollout{frames}"
    if isinstance(run.task, Timed):
        outputs = len(get_nested(run.card, "spec", "outputs") or [])
        return f"time-conditioned: {outputs // run.task.channels or 'all'} frames"
    return "outputs from inputs, in one call"


def recipe(run: Run) -> str:
    """Name of the recipe."""
    return text(run.card.get("recipe") or run.config.get("recipe"))


def model_name(run: Run) -> str:
    """Name of the model."""
    return text(get_nested(run.card, "model", "name") or get_nested(run.config, "model", "name"))


def split(run: Run) -> str:
    """Name of the evaluated split."""
    return text(run.metrics.get("split") or "test")


def evaluated_on(run: Run) -> str:
    """The evaluated split and its number of samples."""
    if not run.metrics:
        return "not evaluated yet"
    return f"{split(run)} split, {number(run.metrics.get('samples'))} samples"


def epochs(run: Run) -> str:
    """Finished and planned epochs."""
    planned = get_nested(run.config, "training", "epochs")
    done = run.history[-1].epoch if run.history else None
    if done is None:
        return MISSING if planned is None else f"none recorded of {planned}"
    return str(done) if planned is None else f"{done} of {planned}"


def training_time(run: Run) -> str:
    """Training time in metrics.json, or the sum over the epochs so far."""
    seconds = get_nested(run.metrics, "seconds", "train")
    return duration(sum(epoch.seconds for epoch in run.history) or None if seconds is None else seconds)


def provenance(run: Run) -> Markup:
    """Table of the provenance of a run, and its whole configuration, collapsed."""
    seed = run.card.get("seed", run.config.get("seed"))
    facts = {
        "Recipe": recipe(run),
        "Data": text(run.metrics.get("data")),
        "Protocol": text(run.metrics.get("protocol")),
        "Seed": text(seed),
        "Commit": text(run.card.get("commit")),
        "Machine": text(run.card.get("machine")),
        "Device": text(run.metrics.get("device")),
        "Training precision": text(get_nested(run.config, "training", "precision")),
        "Evaluation precision": text(run.metrics.get("precision")),
        "Training time": training_time(run),
        f"Time to predict the {split(run)} split": duration(get_nested(run.metrics, "seconds", "evaluate")),
    }
    known = [[name, value] for name, value in facts.items() if value != MISSING]
    parts = [table(["Fact", "Value"], known)]
    if run.config_text:
        parts.append(details("All settings (config.yaml)", tag("pre", run.config_text)))
    if versions := run.card.get("versions"):
        rows = [[name, text(version)] for name, version in versions.items()]
        parts.append(details("Versions", table(["Package", "Version"], rows)))
    return join(parts)
