"""The numbers of a page: headline, summary table, provenance."""

from linearno.data import METRICS, metric_title
from linearno.report.formatting import NOTHING, capital, dig, duration, number, text
from linearno.report.html import Markup, details, join, table, tag
from linearno.report.run_folder import Run
from linearno.training import Completion, Rollout, Timed
from linearno.viz.style import run_color

SIDE_BY_SIDE = 3  # up to so many runs are columns of the summary; more are rows
MEANINGS = {
    "relative_l2": "‖prediction − truth‖ / ‖truth‖ of one sample, over all its points, in physical units. "
    "0 is exact; 1 is as far off as predicting zero.",
    "relative_mae": "mean |prediction − truth| / mean |truth| of one sample, over all its points, in "
    "physical units. 0 is exact; 1 is as far off as predicting zero.",
}


def headline(runs: list[Run]) -> Markup:
    """One card for each run: its name and the number that matters most."""
    return tag("div", *(_card(run, place) for place, run in enumerate(runs)), class_="cards")


def _card(run: Run, place: int) -> Markup:
    dot = tag("span", class_="dot", style=f"background:{run_color(place)}", aria_hidden="true")
    name = tag("a", run.name, href=f"#run-{place + 1}")
    return tag("div", tag("p", dot, name, class_="name"), reached(run), class_="card")


def reached(run: Run) -> Markup:
    """The number that matters most, what it is, and how it compares with the simplest answer."""
    error, baseline = dig(run.metrics, run.metric, "mean"), dig(run.metrics, "mean_field", run.metric)
    if error is None:
        return tag("p", "not evaluated yet")
    lines = [
        tag("p", number(error), class_="big"),
        tag("p", f"mean {metric_title(run.metric)} (dimensionless), {evaluated_on(run)}"),
    ]
    if isinstance(baseline, float) and isinstance(error, float) and error > 0:
        ratio = f"{baseline / error:.3g} times lower" if error <= baseline else "no lower"
        lines.append(tag("p", f"{ratio} than the mean-field baseline, {number(baseline)}", class_="quiet"))
    return join(lines)


def summary(runs: list[Run]) -> Markup:
    """The table, and what its words mean."""
    metrics = _metrics(runs)
    columns = {run.name: _facts(run, metrics) for run in runs}
    labels = list(next(iter(columns.values())))
    if len(runs) <= SIDE_BY_SIDE:
        rows = [[label, *(facts[label] for facts in columns.values())] for label in labels]
        shown = table(["Run", *columns], rows)
    else:
        shown = table(["Run", *labels], [[name, *facts.values()] for name, facts in columns.items()])
    footnote = tag("p", f"{NOTHING} stands for what the run folder does not hold.", class_="quiet")
    unknown = any(NOTHING in facts.values() for facts in columns.values())
    return join([shown, *([footnote] if unknown else []), _glossary(runs, metrics)])


def _metrics(runs: list[Run]) -> list[str]:
    """The errors that the runs hold, those that count first."""
    others = (name for name in METRICS if any(name in run.metrics for run in runs))
    return list(dict.fromkeys([*(run.metric for run in runs), *others]))


def _facts(run: Run, metrics: list[str]) -> dict[str, str]:
    errors = {}
    for metric in metrics:
        name = capital(metric_title(metric))
        for which in ("mean", "median", "max"):
            errors[f"{name}, {which} (dimensionless)"] = number(dig(run.metrics, metric, which))
        baseline = dig(run.metrics, "mean_field", metric)
        errors[f"Mean-field baseline, {metric_title(metric)} (dimensionless)"] = number(baseline)
    return {
        "Recipe": recipe(run),
        "Task": task(run),
        "Model": model_name(run),
        "Parameters (count)": number(run.metrics.get("parameters")),
        "Epochs": epochs(run),
        "Evaluated on": evaluated_on(run),
        **errors,
        **{capital(metric_title(name)): number(value) for name, value in _summaries(run).items()},
        "Training time": training_time(run),
        "Device": text(run.metrics.get("device")),
        "Data": text(run.metrics.get("data")),
    }


def _summaries(run: Run) -> dict[str, float]:
    """Numbers of the whole test set, such as a rank correlation."""
    found = run.metrics.get("summaries")
    return found if isinstance(found, dict) else {}


def _glossary(runs: list[Run], metrics: list[str]) -> Markup:
    words = {capital(metric_title(metric)): MEANINGS[metric] for metric in metrics if metric in MEANINGS}
    words["Mean field"] = (
        "the simplest answer there is: the mean of the training solutions, for every sample. "
        "A model is worth its cost only well below it."
    )
    if any(isinstance(run.task, Rollout) for run in runs):
        words["Rollout"] = "frame after frame, each predicted from the last ones: predictions are fed back."
    if any(isinstance(run.task, Timed) for run in runs):
        words["Frames by their time"] = "each frame from the inputs and its time; none is fed back."
    if any(isinstance(run.task, Completion) for run in runs):
        words["Completion"] = "the whole field from its values at a few points, drawn at random."
    return tag("dl", *(part for word in words for part in (tag("dt", word), tag("dd", words[word]))))


def task(run: Run) -> str:
    """What the model was asked, in a few words."""
    if isinstance(run.task, Completion):
        return f"completion from {100 * run.task.ratio:g} % of the points"
    if isinstance(run.task, Rollout):
        inputs, outputs = (len(dig(run.card, "spec", part) or []) for part in ("inputs", "outputs"))
        channels = run.task.channels
        frames = f": {outputs // channels} frames from {inputs // channels}" if outputs else ""
        return f"rollout{frames}"
    if isinstance(run.task, Timed):
        outputs = len(dig(run.card, "spec", "outputs") or [])
        return f"{outputs // run.task.channels or 'all'} frames by their time"
    return "outputs from inputs, in one call"


def recipe(run: Run) -> str:
    return text(run.card.get("recipe") or run.config.get("recipe"))


def model_name(run: Run) -> str:
    return text(dig(run.card, "model", "name") or dig(run.config, "model", "name"))


def split(run: Run) -> str:
    return text(run.metrics.get("split") or "test")


def evaluated_on(run: Run) -> str:
    """Which split and how much of it."""
    if not run.metrics:
        return "not evaluated yet"
    return f"{split(run)} split, {number(run.metrics.get('samples'))} samples"


def epochs(run: Run) -> str:
    planned = dig(run.config, "training", "epochs")
    done = run.history[-1].epoch if run.history else None
    if done is None:
        return NOTHING if planned is None else f"none recorded of {planned}"
    return str(done) if planned is None else f"{done} of {planned}"


def training_time(run: Run) -> str:
    """As the run recorded it, or what its epochs add up to so far."""
    seconds = dig(run.metrics, "seconds", "train")
    return duration(sum(epoch.seconds for epoch in run.history) or None if seconds is None else seconds)


def provenance(run: Run) -> Markup:
    """Where the run comes from, and its whole configuration, folded."""
    seed = run.card.get("seed", run.config.get("seed"))
    facts = {
        "Recipe": recipe(run),
        "Data": text(run.metrics.get("data")),
        "Protocol": text(run.metrics.get("protocol")),
        "Seed": text(seed),
        "Commit": text(run.card.get("commit")),
        "Machine": text(run.card.get("machine")),
        "Device": text(run.metrics.get("device")),
        "Precision of training": text(dig(run.config, "training", "precision")),
        "Precision of the test": text(run.metrics.get("precision")),
        "Training time": training_time(run),
        f"Time to predict the {split(run)} split": duration(dig(run.metrics, "seconds", "evaluate")),
    }
    known = [[name, value] for name, value in facts.items() if value != NOTHING]
    parts = [table(["Fact", "Value"], known)]
    if run.settings:
        parts.append(details("All settings (config.yaml)", tag("pre", run.settings)))
    if versions := run.card.get("versions"):
        rows = [[name, text(version)] for name, version in versions.items()]
        parts.append(details("Versions", table(["Package", "Version"], rows)))
    return join(parts)
