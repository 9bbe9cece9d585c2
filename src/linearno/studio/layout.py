"""The page: bar, controls on the left, panels, plots and tables. Templates refer to the state of `app`."""

from typing import TYPE_CHECKING, Any

from trame.widgets import html

from linearno.studio.result_tables import result_tables, run_tables
from linearno.studio.widgets import Download, FieldView, Overlay

if TYPE_CHECKING:
    from linearno.studio.app import StudioApp

PAGES = {"design": "Design", "inside": "Inside", "trust": "Trust", "runs": "Runs"}
SLIDER = {  # attributes of a slider, and the keys of a parameter
    **{"min": "low", "max": "high", "step": "step", "value": "value"},
    **{"aria-label": "label", "data-parameter": "name"},
}
TRACKBALL = [
    {"button": 1, "action": "Rotate"},
    {"button": 2, "action": "Pan"},
    {"button": 3, "action": "Zoom", "scrollEnabled": True},
    {"button": 1, "action": "Pan", "shift": True},
]


def build_page(app: "StudioApp") -> None:
    """All elements of the page, inside the layout that is open."""
    with html.Div(classes=("'studio ' + theme",)):
        _bar(app)
        Download(file=("download",))
        with html.Div(classes="body"):
            with html.Div(classes="side"):
                _inside_controls(app)
                _run_controls(app)
                _problem_controls(app)
                _design_controls(app)
                _view_controls(app)
            with html.Main(classes="main"):
                _banners()
                run_tables()
                _panels(app)
                result_tables(app)


def _select(label: str, value: str, items: str, change: Any, **more: Any) -> None:
    """A labelled select; `items` are {value, text}."""
    with html.Label(classes="field", **more):
        html.Span(label)
        with html.Select(
            value=(value,), change=(change, "[$event.target.value]"), __events=["change"],
            raw_attrs=[f'aria-label="{label}"'],
        ):  # fmt: skip
            html.Option("{{ item.text }}", v_for=f"item in {items}", value=("item.value",), key="item.value")


def _flag(attribute: str, state: str, value: str) -> str:
    """An attribute that is "true" while a variable of the state has a value."""
    return f""":{attribute}="{state} === '{value}' ? 'true' : 'false'" """.strip()


def _button(text: str, click: Any, arguments: str = "[]", *, classes: str = "btn", **more: Any) -> None:
    html.Button(text, classes=classes, click=(click, arguments), type="button", **more)


def _bar(app: "StudioApp") -> None:
    with html.Header(classes="bar"):
        with html.Div(classes="brand"):
            html.B("linearno ")
            html.Span("studio")
        with html.Nav(classes="tabs", raw_attrs=['role="tablist"']):
            for key, text in PAGES.items():
                html.Button(
                    text, type="button", click=(app.open_page, f"['{key}']"),
                    raw_attrs=['role="tab"', _flag("aria-selected", "page", key), f'data-page="{key}"'],
                )  # fmt: skip
        html.Div(classes="spacer")
        with html.Label(v_if="run_items.length > 1"), html.Select(
            value=("run",), change=(app.choose_run, "[$event.target.value]"), __events=["change"],
            raw_attrs=['aria-label="run"'],
        ):  # fmt: skip
            html.Option("{{ item.text }}", v_for="item in run_items", value=("item.value",), key="item.value")
        html.Span("{{ run_items[0]?.text }}", v_if="run_items.length === 1", classes="hint")
        _button(
            "{{ theme === 'dark' ? 'Light' : 'Dark' }}", app.toggle_theme, raw_attrs=['data-test="theme"']
        )


def _problem_controls(app: "StudioApp") -> None:
    with html.Section(classes="card", v_if="page !== 'runs' && design_items.length"):
        html.H2("Design")
        _select(
            "start from", "design_title", "design_items", app.choose_design, v_if="design_items.length > 1"
        )
        _select("case", "case_name", "case_items", app.choose_case, v_if="case_items.length")
        with html.Label(classes="field", v_if="takes_meshes"):
            html.Span("or a mesh of yours (VTU, VTP, VTK, STL)")
            html.Input(
                type="file", accept=".vtu,.vtp,.vtk,.stl", change=(app.upload, "[$event.target.files[0]]"),
                __events=["change"], raw_attrs=['data-test="upload"', 'style="max-width:100%"'],
            )  # fmt: skip
        _parameters(app)
        html.P("{{ hint }}", v_if="hint", classes="hint")
        with html.Div(classes="row"):
            _button(
                "Random", app.draw, v_if="draws", raw_attrs=['title="a design like the training samples"']
            )
            _button("All low", app.fill, "['low']", v_if="paints")
            _button("All high", app.fill, "['high']", v_if="paints")
            _button("Straight", app.fill, "['straight']", v_if="draws && !paints")
    with html.Section(classes="card", v_if="solver && page === 'design'"):
        html.H2("Solver")
        html.P("{{ solver }}", classes="hint")
        _button(
            "{{ solving ? 'Solving …' : 'Solve this design' }}", app.start_solve, classes="btn main-action",
            disabled=("solving",), raw_attrs=['data-test="solve"'],
        )  # fmt: skip


def _parameters(app: "StudioApp") -> None:
    """A slider for each parameter of the design."""
    with html.Label(v_for="p in parameters", key="p.name", classes=("'field' + (p.out ? ' out' : '')",)):
        with html.Span():
            html.Span("{{ p.label }}")
            html.B("{{ p.text }}")
        html.Input(
            type="range",
            input=(app.set_parameter, "[p.name, Number($event.target.value)]"),
            __events=["input"],
            raw_attrs=[f":{name}='p.{key}'" for name, key in SLIDER.items()],
        )


def _design_controls(app: "StudioApp") -> None:
    with html.Section(
        classes="card", v_if="flat && panels.length && (page === 'design' || page === 'trust')"
    ):
        html.H2("Pointer")
        with html.Div(classes="row"):
            for key, text, shown in (
                ("edit", "{{ paints ? 'Paint' : 'Drag points' }}", "paints || handles.length"),
                ("probe", "Place probes", "true"),
                ("pan", "Move the view", "true"),
            ):
                _button(
                    text, app.choose_tool, f"['{key}']", v_if=shown,
                    raw_attrs=[_flag("aria-pressed", "tool", key), f'data-tool="{key}"'],
                )  # fmt: skip
            _button("Remove probes", app.remove_probes, v_if="probes.length")
            _button("Whole domain", app.whole_view)
            _button("Close up", app.first_view, v_if="has_view")
    with html.Section(classes="card", v_if="!flat && panels.length && page === 'design'"):
        html.H2("Clipping plane")
        _select("normal", "clip_axis", "clip_items", app.set_clip_axis)
        with html.Label(classes="field", v_if="clip_axis !== 'off'"):
            html.Span("position")
            html.Input(
                type="range", min=0, max=1, step=0.01, input=(app.set_clip, "[Number($event.target.value)]"),
                __events=["input"], raw_attrs=[":value='clip_position'", 'aria-label="position"'],
            )  # fmt: skip


def _view_controls(app: "StudioApp") -> None:
    shown = "page !== 'inside' && (channel_items.length > 1 || frames > 1)"
    with html.Section(classes="card", v_if=shown):
        html.H2("Field")
        _select("quantity", "channel", "channel_items", app.choose_channel, v_if="channel_items.length > 1")
        with html.Label(classes="field", v_if="frames > 1"):
            with html.Span():
                html.Span("frame")
                html.B("{{ frame + 1 }} of {{ frames }}")
            html.Input(
                type="range", min=0, step=1, input=(app.set_frame, "[Number($event.target.value)]"),
                __events=["input"], raw_attrs=[":max='frames - 1'", ":value='frame'", 'aria-label="frame"'],
            )  # fmt: skip
        _button("{{ playing ? 'Pause' : 'Play' }}", app.toggle_play, v_if="frames > 1")
    with html.Section(classes="card", v_if="panels.length"):
        html.H2("Export")
        with html.Div(classes="row"):
            _button("PNG", app.export_png, raw_attrs=['data-test="png"'])
            _button("VTU", app.export_vtu, raw_attrs=['data-test="vtu"'])


def _inside_controls(app: "StudioApp") -> None:
    with html.Section(classes="card", v_if="page === 'inside' && layer_items.length"):
        html.H2("Attention")
        _select("layer", "layer", "layer_items", app.choose_layer)
        _select("head", "head", "head_items", app.choose_head)
        _select("slice", "slice", "slice_items", app.choose_slice)
        with html.Div(classes="row"):
            for key, text in (("gather", "gathers (ψ)"), ("scatter", "scatters (φ)")):
                _button(
                    text, app.choose_weights, f"['{key}']",
                    raw_attrs=[_flag("aria-pressed", "weights", key)],
                )  # fmt: skip
        html.P(
            "Hover a map: the bars show how much each slice gives to that point.",
            classes="hint",
            style="margin-top:10px",
        )


def _run_controls(app: "StudioApp") -> None:
    with html.Section(classes="card", v_if="page === 'runs' && parameters.length && panels.length"):
        html.H2("Test sample")
        _parameters(app)
    with html.Section(classes="card", v_if="page === 'runs'"):
        html.H2("Training")
        html.P(
            "{{ live ? 'A training is going on: this page follows it.' : 'All runs are finished.' }}",
            classes="hint",
        )


def _banners() -> None:
    with html.Div(classes="card banner error", v_if="error", raw_attrs=['role="alert"', 'data-test="error"']):
        html.Strong("Not shown")
        html.P("{{ error }}")
    with html.Div(
        classes=("'card banner ' + trust.level",), v_if="trust && (page === 'design' || page === 'trust')",
        raw_attrs=['role="status"', 'data-test="trust"', ":data-level='trust.level'"],
    ):  # fmt: skip
        html.Strong("{{ trust.title }}")
        with html.Div():
            html.P("{{ sentence }}", v_for="sentence in trust.sentences", key="sentence")
            html.P("{{ trust.note }}", v_if="trust.note && page === 'trust'", classes="hint")


def _panels(app: "StudioApp") -> None:
    with html.Div(classes=("'panels n' + panels.length",), v_show="panels.length"):
        for i, view in enumerate(app.views):
            with html.Section(
                classes="card panel",
                v_show=f"panels.length > {i}",
                key=f"'panel{i}'",
                raw_attrs=[f'data-panel="{i}"'],
            ):
                with html.Header():
                    html.H2(f"{{{{ panels[{i}]?.title }}}}")
                    html.Span(f"{{{{ panels[{i}]?.note }}}}")
                with html.Div(classes="stage"):
                    with html.Div():
                        view.widget = FieldView(
                            view.scene.window, ref=f"view{i}", interactor_settings=("trackball", TRACKBALL)
                        )
                    Overlay(
                        v_if=f"flat && panels.length > {i}", camera=("camera",),
                        handles=(f"shows_handles[{i}] ? handles : []",),
                        outline=(f"shows_handles[{i}] ? outline : []",),
                        probes=("page === 'inside' ? [] : probes",),
                        tool=(f"tools[{i}]",), radius=("radius",), tick=("tick",),
                        mark=("page === 'inside' ? mark : null",), label=(f"panels[{i}]?.title",),
                        drag=(app.drag, "$event"), paint=(app.paint, "[$event]"), probe=(app.probe, "$event"),
                        hover=(app.hover, "$event"), zoom=(app.zoom, "$event"), pan=(app.pan, "$event"),
                        size=(app.resize, "$event"),
                    )  # fmt: skip
                with html.Div(classes="scale"):
                    html.I(style=(f"{{ background: panels[{i}]?.css }}",))
                    with html.Div():
                        html.Span(f"{{{{ panels[{i}]?.low }}}}")
                        html.Span(f"{{{{ panels[{i}]?.label }}}}")
                        html.Span(f"{{{{ panels[{i}]?.high }}}}")
