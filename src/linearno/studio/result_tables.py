"""Plots and tables of the page. Templates refer to the state of `app`."""

from typing import TYPE_CHECKING

from trame.widgets import html

from linearno.studio.widgets import Bars, LinePlotView

if TYPE_CHECKING:
    from linearno.studio.app import StudioApp


def _legend(plot: str) -> None:
    with html.Div(classes="legend"), html.Span(v_for=f"s in {plot}.series", key="s.name"):
        html.I(
            style=(
                "{ borderTopStyle: s.dashed ? 'dashed' : 'solid', borderTopColor: "
                "['#0072b2','#d55e00','#009e73','#cc79a7','#e69f00','#56b4e9'][s.color % 6] }",
            )
        )
        html.Span("{{ s.name }}")


def result_tables(app: "StudioApp") -> None:
    """Plots and tables below the panels."""
    with html.Div(classes="lower", v_if="page === 'design' && panels.length"):
        with html.Section(classes="card", v_if="plot"):
            html.H2("{{ plot.title }}")
            _legend("plot")
            LinePlotView(plot=("plot",))
        with html.Section(classes="card", v_if="quantities.length"):
            html.H2("Quantities")
            _quantity_table()
    with html.Div(classes="lower", v_if="page === 'inside' && bars.length"):
        with html.Section(classes="card"):
            html.H2("{{ mark ? 'Slice weights φ of the hovered point' : 'Slice weights φ: hover a map' }}")
            with html.Div(v_for="(b, i) in bars", key="b.name"):
                html.P("{{ b.name }}", classes="hint", style="margin:6px 0 2px")
                Bars(
                    values=("b.values",),
                    chosen=("Number(slice)",),
                    color=("i",),
                    choose=(app.choose_slice, "[$event]"),
                )
        with html.Section(classes="card", v_if="rank_plot"):
            html.H2("{{ rank_plot.title }}")
            _legend("rank_plot")
            LinePlotView(plot=("rank_plot",))
    _trust_table()


def _quantity_table() -> None:
    with html.Div(classes="scroll"), html.Table(raw_attrs=['data-test="quantities"']):
        with html.Thead(), html.Tr():
            html.Th("")
            html.Th("surrogate", classes="n")
            html.Th("{{ truth_name }}", classes="n", v_if="truth_name")
        with html.Tbody(), html.Tr(v_for="q in quantities", key="q.name"):
            html.Td("{{ q.name }}")
            html.Td("{{ q.surrogate }}", classes="n")
            html.Td("{{ q.truth }}", classes="n", v_if="truth_name")


def _trust_table() -> None:
    with html.Section(classes="card", v_if="page === 'trust' && ranges.length"):
        html.H2("Parameters and the range of the training samples")
        table = html.Table()
        with table, html.Tbody(), html.Tr(v_for="r in ranges", key="r.name"):
            html.Td("{{ r.name }}", style="width:22%")
            html.Td("{{ r.text }}", classes="n", style="width:14%")
            with html.Td(), html.Div(classes="ranges"):
                html.I(style=("{ left: r.from + '%', width: r.width + '%' }",))
                html.B(style=("{ left: r.at + '%' }",))
    with html.Section(classes="card", v_if="page === 'trust' && parts_off.length"):
        html.H2("Not available for this run")
        html.P("{{ text }}", v_for="text in parts_off", key="text", classes="hint")


def run_tables() -> None:
    """Table and curves of all runs."""
    columns = {
        "name": "run", "model": "model", "status": "status", "error": "test error", "epochs": "epochs",
        "time": "training", "parameters": "parameters",
    }  # fmt: skip
    with html.Div(classes="lower", v_if="page === 'runs' && table.length"):
        _run_table(columns)
        with html.Section(classes="card", v_if="loss_plot"):
            html.H2("{{ loss_plot.title }}")
            _legend("loss_plot")
            LinePlotView(plot=("loss_plot",))


def _run_table(columns: dict[str, str]) -> None:
    with html.Section(classes="card"):
        html.H2("Runs")
        with html.Div(classes="scroll"), html.Table(raw_attrs=['data-test="runs"']):
            with html.Thead(), html.Tr():
                for key, text in columns.items():
                    html.Th(text, classes="n" if key in ("error", "epochs", "time", "parameters") else "")
            with html.Tbody(), html.Tr(v_for="r in table", key="r.name"):
                for key in columns:
                    numeric = key in ("error", "epochs", "time", "parameters")
                    html.Td(f"{{{{ r.{key} }}}}", classes="n" if numeric else "")
