"""State of the studio without a browser: runs, design, fields, and the panels of each page.

Axes: N points, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from linearno.core.durations import format_duration
from linearno.core.errors import UserError
from linearno.nn.protocol import model_name
from linearno.studio import engine
from linearno.studio.colors import MEDIUM, WEIGHTS, Scale, positive_scale, scale_of, symmetric_scale
from linearno.studio.designs import (
    AirfoilDesign,
    CaseDesign,
    DarcyDesign,
    Design,
    LinePlot,
    SampleDesign,
    Series,
)
from linearno.studio.designs.darcy import HIGH, LOW
from linearno.studio.engine import Fields, TrustModel
from linearno.studio.geometry import Geometry, Plane
from linearno.studio.inside import SliceInspector
from linearno.studio.runs import StudioRun
from linearno.studio.trust import Verdict, verdict

MAX_PANELS = 4


@dataclass(frozen=True)
class Panel:
    """A field to draw.

    Args:
        title: heading.
        note: text beside the heading.
        geometry: where it is drawn.
        values: field at the rows of the data.
        scale: colours.
        label: quantity of the colour bar, with its unit.
    """

    title: str
    note: str
    geometry: Geometry
    values: Float[ndarray, "N"]
    scale: Scale
    label: str


@dataclass
class StudioModel:
    """What is shown; methods change it, `update` recomputes what follows.

    Args:
        runs: the runs, at least one.
    """

    runs: list[StudioRun]
    index: int = 0
    design: Design | None = None
    fields: Fields | None = None
    channel: int = 0
    frame: int = 0
    layer: int = 0
    head: int = 0
    slice: int = 0
    weights: str = "gather"
    point: int | None = None
    probes: list[tuple[float, float]] = field(default_factory=list)
    clip: Plane | None = None
    _geometry: tuple[object, Geometry] | None = None
    _medium: Geometry | None = None
    _sample_geometry: tuple[object, Geometry] | None = None
    _trust: dict[int, TrustModel] = field(default_factory=dict)
    _inspectors: dict[tuple[int, int], SliceInspector] = field(default_factory=dict)
    _version: int = 0

    def __post_init__(self) -> None:
        ready = [i for i, run in enumerate(self.runs) if run.bundle is not None]
        self.index = ready[0] if ready else 0
        self._first_design()

    @property
    def run(self) -> StudioRun:
        return self.runs[self.index]

    @property
    def titles(self) -> list[str]:
        """Titles of the designs that the run offers."""
        return list(self.run.design_kinds())

    def choose_run(self, index: int) -> None:
        """Show another run; the design stays if both solve the same problem."""
        old, new = self.run, self.runs[index]
        keep = old.bundle is not None and new.bundle is not None and old.key == new.key
        self.index = index
        if not keep:
            self.channel = self.frame = self.layer = self.head = self.slice = 0
            self._first_design()
        self.changed()

    def choose_design(self, title: str) -> None:
        self.design = self.run.design(title)
        self.point, self.probes, self.clip = None, [], None
        self.changed()

    def changed(self) -> None:
        """Forget what belonged to the design before its change."""
        self._version += 1
        self.fields = None
        self._inspectors.clear()
        if isinstance(self.design, AirfoilDesign | SampleDesign | CaseDesign):
            self._geometry = None

    def set_parameter(self, name: str, value: float) -> None:
        """Move a slider."""
        self._design().set(name, value)
        if name not in ("brush", "radius", "line"):
            self.changed()

    def drag(self, name: str, y: float) -> None:
        """Drag a control point to the height `y`."""
        design = self._design()
        if isinstance(design, AirfoilDesign):
            self.set_parameter(name, design.height_at(name, y))

    def paint(self, points: list[tuple[float, float]]) -> None:
        """Move the brush along points."""
        design = self._design()
        if isinstance(design, DarcyDesign):
            design.paint(points)
            self.changed()

    def draw(self, seed: int) -> None:
        """A random design like the training samples."""
        if isinstance(self.design, DarcyDesign | AirfoilDesign):
            self.design.draw(seed)
            self.changed()

    def fill(self, name: str) -> None:
        """A simple design: a uniform medium, or the straight airfoil."""
        if isinstance(self.design, DarcyDesign | AirfoilDesign):
            self.design.fill(name)
            self.changed()

    def choose_case(self, name: str) -> None:
        if isinstance(self.design, CaseDesign):
            self.design.choose(name)
            self.changed()

    def upload(self, name: str, content: bytes) -> None:
        """Show a mesh from the browser."""
        if not isinstance(self.design, CaseDesign):
            if CaseDesign.title not in self.titles:
                raise UserError("this run takes no meshes: it was trained on arrays")
            self.choose_design(CaseDesign.title)
        assert isinstance(self.design, CaseDesign)
        self.design.upload(name, content)
        self.changed()

    def update(self) -> Fields:
        """Fields of the present design, computed if it has changed."""
        if self.fields is None:
            self.fields = engine.compute(self.run, self._design())
        return self.fields

    def solve(self) -> Fields:
        """Solve the present design with the real solver."""
        fields = self.update()
        fields.truth, fields.solver_seconds = engine.solve(self._design())
        fields.truth_name = "solver"
        return fields

    def verdict(self) -> Verdict:
        """Trust in the prediction."""
        fields = self.update()
        if isinstance(self.design, CaseDesign):
            return verdict(None, [*self.design.warnings(), *fields.warnings])
        if self.index not in self._trust:
            self._trust[self.index] = TrustModel(self.run)
        return self._trust[self.index].verdict(self._design(), fields)

    @property
    def trust_message(self) -> str | None:
        """Why the guard checks less than the whole design."""
        return self._trust[self.index].message if self.index in self._trust else None

    @property
    def frames(self) -> int:
        """Frames of a rollout or of a timed run; 1 otherwise."""
        bundle = self.run.bundle
        if bundle is None or bundle.task.frame is None:
            return 1
        return len(bundle.spec.outputs) // bundle.task.frame

    @property
    def channels(self) -> list[str]:
        """Names of the quantities that can be shown: outputs of a frame."""
        bundle = self.run.bundle
        if bundle is None:
            return []
        if bundle.task.frame is None:
            return list(bundle.spec.outputs)
        if bundle.task.frame == 1:
            return ["field"]
        return [f"component {i + 1}" for i in range(bundle.task.frame)]

    @property
    def label(self) -> str:
        """The shown quantity with its unit."""
        assert self.run.bundle is not None
        name = self.run.bundle.spec.outputs[self.column()]
        unit = self.run.bundle.spec.units.get(name, "")
        return f"{self.channels[self.channel]} ({unit})" if unit not in ("", "dimensionless") else self.channels[self.channel]

    def geometry(self) -> Geometry:
        """Where fields are drawn; the same object until the geometry changes."""
        key = (id(self.design), self.clip)
        if self._geometry is None or self._geometry[0] != key:
            whole = self._design().geometry()
            self._geometry = key, whole if self.clip is None or whole.flat else whole.clipped(self.clip)
        return self._geometry[1]

    def samples(self) -> SampleDesign | None:
        """Test samples of the run for the comparison; None if its data are not here."""
        if SampleDesign.title not in self.titles:
            return None
        try:
            design = self.run.design(SampleDesign.title)
        except UserError:
            return None
        assert isinstance(design, SampleDesign)
        return design

    def sample_geometry(self, design: SampleDesign) -> Geometry:
        """Where a test sample is drawn; the same object until another one is chosen."""
        key = (id(design), design.index)
        if self._sample_geometry is None or self._sample_geometry[0] != key:
            self._sample_geometry = key, design.geometry()
        return self._sample_geometry[1]

    def design_panels(self) -> list[Panel]:
        """Surrogate, and truth and difference where the truth is known."""
        fields, geometry, column = self.update(), self.geometry(), self.column()
        shown = fields.prediction[:, column]
        milliseconds = f"{1e3 * fields.seconds:.0f} ms"
        if fields.truth is None:
            panels = [Panel("Surrogate", milliseconds, geometry, shown, scale_of([shown]), self.label)]
            return [*self._medium_panels(), *panels]
        truth = fields.truth[:, column]
        scale, error = scale_of([truth, shown]), shown - truth
        seconds = fields.solver_seconds
        note = "" if seconds is None else format_seconds(seconds)
        relative = fields.relative_error
        difference = "" if relative is None else f"relative L2 {relative:.3g}"
        name = fields.truth_name.capitalize()
        return [
            *self._medium_panels(),
            Panel("Surrogate", milliseconds, geometry, shown, scale, self.label),
            Panel(name, note, geometry, truth, scale, self.label),
            Panel(f"Surrogate − {fields.truth_name}", difference, geometry, error, symmetric_scale([error]), self.label),
        ]  # fmt: skip

    def _medium_panels(self) -> list[Panel]:
        """The medium that is painted."""
        if not isinstance(self.design, DarcyDesign):
            return []
        if self._medium is None:
            self._medium = self.design.medium_geometry()
        medium = self.design.medium.ravel()
        scale = Scale(MEDIUM, min(LOW, float(medium.min())), max(HIGH, float(medium.max())))
        return [Panel("Medium", "paint here", self._medium, medium, scale, "permeability")]

    def trust_panels(self) -> list[Panel]:
        """Prediction and, where it is known, its standard deviation."""
        fields, geometry, column = self.update(), self.geometry(), self.column()
        if fields.std is None and (found := engine.spread(self.runs, self.run, self._design())):
            fields.std, fields.std_name = found
        shown = fields.prediction[:, column]
        panels = [Panel("Surrogate", self.run.name, geometry, shown, scale_of([shown]), self.label)]
        if fields.std is not None:
            std = fields.std[:, column]
            note = f"largest {float(np.nanmax(std)):.3g}"
            panels.append(Panel("Uncertainty", note, geometry, std, positive_scale([std]), fields.std_name))
        return panels

    def inspector(self, index: int) -> SliceInspector:
        """Slice weights of a run on the present design."""
        key = (index, self._version)
        if key not in self._inspectors:
            self._inspectors[key] = SliceInspector(self.runs[index], self._design())
        return self._inspectors[key]

    def inside_runs(self) -> list[int]:
        """The chosen run and another one with the same designs, whose slices can be shown."""
        if self.run.bundle is None:
            return []
        others = [i for i, run in enumerate(self.runs) if run.bundle is not None and run.key == self.run.key]
        order = [self.index, *(i for i in others if i != self.index)]
        return [i for i in order if not any("Inside is off" in text for text in self.runs[i].parts_off)][:2]

    def inside_panels(self) -> list[Panel]:
        """Map of the chosen slice's weights for each of the runs."""
        panels, geometry = [], self.geometry()
        if not (shown := self.inside_runs()):
            raise UserError("; ".join(self.run.parts_off) or "no slices to show")
        for index in shown:
            inspector = self.inspector(index)
            layer, head = min(self.layer, len(inspector.layers) - 1), min(self.head, inspector.heads - 1)
            values = inspector.map(self.weights, layer, head, min(self.slice, inspector.slices - 1))
            bundle = self.runs[index].bundle
            assert bundle is not None
            symbol = "ψ, where it gathers" if self.weights == "gather" else "φ, where it scatters"
            note = f"{model_name(bundle.model)}, layer {layer + 1}, head {head + 1}, slice {self.slice + 1}"
            panels.append(
                Panel(self.runs[index].name, note, geometry, values, Scale(WEIGHTS, 0.0, 1.0), f"{symbol} (of its maximum)")
            )  # fmt: skip
        return panels

    def rank_plot(self) -> LinePlot:
        """Mean rank over the heads in each layer."""
        series = []
        for color, index in enumerate(self.inside_runs()):
            inspector = self.inspector(index)
            ranks = inspector.ranks()
            layers = [float(layer + 1) for layer in range(len(ranks))]
            series.append(Series(self.runs[index].name, layers, ranks.mean(axis=1).tolist(), color))
            bound = [float(inspector.slices)] * len(layers)
            series.append(Series(f"upper bound M = {inspector.slices}", layers, bound, color, dashed=True))
        return LinePlot("rank of the attention kernel, mean of heads", "layer", "rank", series)

    def line_plot(self) -> LinePlot | None:
        """Lines of the design for the surrogate and, where it is known, the truth."""
        fields = self.update()
        named = {"surrogate": fields.prediction}
        if fields.truth is not None:
            named[fields.truth_name] = fields.truth
        return self._design().plot(named)

    def quantities(self) -> list[dict[str, Any]]:
        """Rows of integral quantities: name, surrogate, truth, unit."""
        fields, design = self.update(), self._design()
        found = design.quantities(fields.prediction)
        true = design.quantities(fields.truth) if fields.truth is not None else [None] * len(found)
        return [
            {
                "name": ours.name + (f" ({ours.unit})" if ours.unit else ""),
                "surrogate": f"{ours.value:.4g}",
                "truth": "" if theirs is None else f"{theirs.value:.4g}",
            }
            for ours, theirs in zip(found, true, strict=True)
        ]

    def probe_rows(self) -> list[dict[str, Any]]:
        """Values at the probes."""
        fields, geometry, rows = self.update(), self.geometry(), []
        for i, (x, y) in enumerate(self.probes):
            row = geometry.nearest(x, y)
            value = f"{fields.prediction[row, self.column()]:.4g}"
            truth = "" if fields.truth is None else f"{fields.truth[row, self.column()]:.4g}"
            rows.append({"name": f"P{i + 1} at ({x:.3g}, {y:.3g})", "surrogate": value, "truth": truth})
        return rows

    def column(self) -> int:
        """Column of the outputs that is shown."""
        bundle = self.run.bundle
        assert bundle is not None
        width = len(bundle.spec.outputs) if bundle.task.frame is None else bundle.task.frame
        frame = min(self.frame, self.frames - 1)
        return frame * (bundle.task.frame or 0) + min(self.channel, width - 1)

    def _design(self) -> Design:
        if self.design is None:
            raise UserError("; ".join(filter(None, self.run.parts_off)) or "this run offers no design")
        return self.design

    def _first_design(self) -> None:
        """The first design whose data are here."""
        self.design, self._geometry, self._medium = None, None, None
        for title in self.titles:
            try:
                self.design = self.run.design(title)
                return
            except UserError:
                continue


def format_seconds(seconds: float) -> str:
    """A time such as 35 ms, 1.7 s or 2 min."""
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2g} s" if seconds < 60 else format_duration(seconds)


def plot_state(plot: LinePlot | None, *, log: bool = False) -> dict[str, Any] | None:
    """A line plot for the page."""
    if plot is None:
        return None
    series: Sequence[Series] = plot.series
    return {
        "title": plot.title, "x": plot.x, "y": plot.y, "inverted": plot.inverted, "log": log,
        "series": [
            {"name": s.name, "x": list(s.x), "y": list(s.y), "color": s.color, "dashed": s.dashed} for s in series
        ],
    }  # fmt: skip
