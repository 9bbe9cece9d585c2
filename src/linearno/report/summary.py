"""The numbers of a page: headline, summary table, provenance."""

from linearno.report.markup import Markup, details, join, table, tag
from linearno.report.read import Run
from linearno.report.words import NOTHING, dig, duration, number, text
from linearno.viz.style import run_color

SIDE_BY_SIDE = 3  # up to so many runs are columns of the summary; more are rows


def headline(runs: list[Run]) -> Markup:
    """One card for each run: its name and the number that matters most."""
    return tag("div", *(_card(run, place) for place, run in enumerate(runs)), class_="cards")


def _card(run: Run, place: int) -> Markup:
    error, baseline = dig(run.metrics, "relative_l2", "mean"), dig(run.metrics, "mean_field", "relative_l2")
    dot = tag("span", class_="dot", style=f"background:{run_color(place)}", aria_hidden="true")
    name = tag("a", run.name, href=f"#run-{place + 1}")
    if error is None:
        return tag("div", tag("p", dot, name, class_="name"), tag("p", "not evaluated yet"), class_="card")
    lines = [
        tag("p", dot, name, class_="name"),
        tag("p", number(error), class_="big"),
        tag("p", f"mean relative L2 error (dimensionless), {evaluated_on(run)}"),
    ]
    if isinstance(baseline, float) and isinstance(error, float) and error > 0:
        ratio = f"{baseline / error:.3g} times lower" if error <= baseline else "no lower"
        lines.append(tag("p", f"{ratio} than the mean-field baseline, {number(baseline)}", class_="quiet"))
    return tag("div", *lines, class_="card")


def summary(runs: list[Run]) -> Markup:
    """The table, and what its words mean."""
    columns = {run.name: _facts(run) for run in runs}
    labels = list(next(iter(columns.values())))
    if len(runs) <= SIDE_BY_SIDE:
        rows = [[label, *(facts[label] for facts in columns.values())] for label in labels]
        shown = table(["Run", *columns], rows)
    else:
        shown = table(["Run", *labels], [[name, *facts.values()] for name, facts in columns.items()])
    footnote = tag("p", f"{NOTHING} stands for what the run folder does not hold.", class_="quiet")
    unknown = any(NOTHING in facts.values() for facts in columns.values())
    return join([shown, *([footnote] if unknown else []), _glossary()])


def _facts(run: Run) -> dict[str, str]:
    error = dig(run.metrics, "relative_l2") or {}
    return {
        "Recipe": recipe(run),
        "Model": model_name(run),
        "Parameters (count)": number(run.metrics.get("parameters")),
        "Epochs": epochs(run),
        "Evaluated on": evaluated_on(run),
        "Relative L2, mean (dimensionless)": number(dig(error, "mean")),
        "Relative L2, median (dimensionless)": number(dig(error, "median")),
        "Relative L2, max (dimensionless)": number(dig(error, "max")),
        "Mean-field baseline, relative L2 (dimensionless)": number(
            dig(run.metrics, "mean_field", "relative_l2")
        ),
        "Training time": training_time(run),
        "Device": text(run.metrics.get("device")),
        "Data": text(run.metrics.get("data")),
    }


def _glossary() -> Markup:
    words = {
        "Relative L2": "‖prediction − truth‖ / ‖truth‖ of one sample, over all its points, in physical "
        "units. 0 is exact; 1 is as far off as predicting zero.",
        "Mean field": "the simplest answer there is: the mean of the training solutions, for every sample. "
        "A model is worth its cost only well below it.",
    }
    return tag("dl", *(part for word in words for part in (tag("dt", word), tag("dd", words[word]))))


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
