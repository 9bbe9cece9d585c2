"""State of the studio without a browser: runs, design, fields, and the panels of each page.

Axes: N points, C channels.
"""

from dataclasses import dataclass, field
from typing import Any

from linearno.core.errors import UserError
from linearno.studio import engine
from linearno.studio.designs import (
    AirfoilDesign,
    CaseDesign,
    DarcyDesign,
    Design,
    LinePlot,
    NacaDesign,
    SampleDesign,
)
from linearno.studio.engine import Fields, TrustModel
from linearno.studio.geometry import Geometry, Plane
from linearno.studio.inside import SliceInspector
from linearno.studio.runs import StudioRun
from linearno.studio.trust import Verdict, verdict


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
    medium: Geometry | None = None
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
        if self.design is not None and self.design.moves:
            self._geometry = None

    def set_parameter(self, name: str, value: float) -> None:
        """Move a slider."""
        self.require_design().set(name, value)
        if name not in ("brush", "radius", "line"):
            self.changed()

    def drag(self, name: str, y: float) -> None:
        """Drag a control point to the height `y`."""
        design = self.require_design()
        if isinstance(design, AirfoilDesign):
            self.set_parameter(name, design.height_at(name, y))

    def paint(self, points: list[tuple[float, float]]) -> None:
        """Move the brush along points."""
        design = self.require_design()
        if isinstance(design, DarcyDesign):
            design.paint(points)
            self.changed()

    def draw(self, seed: int) -> None:
        """A random design like the training samples."""
        if self.design is not None and self.design.draws:
            self.design.draw(seed)
            self.changed()

    def fill(self, name: str) -> None:
        """A simple design: a uniform medium, or the straight airfoil."""
        if self.design is not None and self.design.draws:
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
            self.fields = engine.compute(self.run, self.require_design())
        return self.fields

    def solve(self) -> Fields:
        """Solve the present design with the real solver."""
        fields = self.update()
        fields.truth, fields.solver_seconds = engine.solve(self.require_design())
        fields.truth_name = "solver"
        return fields

    def verdict(self) -> Verdict:
        """Trust in the prediction."""
        fields = self.update()
        if isinstance(self.design, CaseDesign):
            return verdict(self.design.novelty(), [*self.design.warnings(), *fields.warnings])
        if isinstance(self.design, NacaDesign):
            return verdict(None, [*self.design.warnings(), *fields.warnings])
        if self.index not in self._trust:
            self._trust[self.index] = TrustModel(self.run)
        return self._trust[self.index].verdict(self.require_design(), fields)

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
        return (
            f"{self.channels[self.channel]} ({unit})"
            if unit not in ("", "dimensionless")
            else self.channels[self.channel]
        )

    def geometry(self) -> Geometry:
        """Where fields are drawn; the same object until the geometry changes."""
        key = (id(self.design), self.clip)
        if self._geometry is None or self._geometry[0] != key:
            whole = self.require_design().geometry()
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

    def inspector(self, index: int) -> SliceInspector:
        """Slice weights of a run on the present design."""
        key = (index, self._version)
        if key not in self._inspectors:
            self._inspectors[key] = SliceInspector(self.runs[index], self.require_design())
        return self._inspectors[key]

    def inside_runs(self) -> list[int]:
        """The chosen run and another one with the same designs, whose slices can be shown."""
        if self.run.bundle is None:
            return []
        others = [i for i, run in enumerate(self.runs) if run.bundle is not None and run.key == self.run.key]
        order = [self.index, *(i for i in others if i != self.index)]
        return [i for i in order if not any("Inside is off" in text for text in self.runs[i].parts_off)][:2]

    def line_plot(self) -> LinePlot | None:
        """Lines of the design for the surrogate and, where it is known, the truth."""
        fields = self.update()
        named = {"surrogate": fields.prediction}
        if fields.truth is not None:
            named[fields.truth_name] = fields.truth
        return self.require_design().plot(named)

    def quantities(self) -> list[dict[str, Any]]:
        """Rows of integral quantities: name, surrogate, truth, unit."""
        fields, design = self.update(), self.require_design()
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

    def require_design(self) -> Design:
        """The design; an error that says what is off, if there is none."""
        if self.design is None:
            raise UserError("; ".join(filter(None, self.run.parts_off)) or "this run offers no design")
        return self.design

    def _first_design(self) -> None:
        """The first design whose data are here."""
        self.design, self._geometry, self.medium = None, None, None
        for title in self.titles:
            try:
                self.design = self.run.design(title)
                return
            except UserError:
                continue
