"""Tables of docs/measured.md and docs/data.md about solvers and generated data."""

from benchmarks.tables.markdown import Records, markdown_table, origin, short_commit, table, title
from linearno.reproduce.records import Record


@table("generation", "generate", command="python -m benchmarks generation darcy --out results")
def generation_lines(found: Records) -> str:
    return "\n".join(_generation(name.removesuffix("_device"), record) for name, record in found.items())


def _generation(name: str, record: Record) -> str:
    facts = record.details
    samples = sum(facts["sizes"].values())
    processor = f"with {facts['workers']} workers" if facts["device"] == "cpu" else f"on {facts['device']}"
    machine = record.machine.removeprefix(f"{facts['device']}, ")
    scheme = f", scheme {facts['scheme']}" if facts.get("scheme") else ""
    return (
        f"{title(name)} at resolution {facts['resolution']}{scheme}: "
        f"{samples:,} samples solved and written in {record.value:.0f} s {processor} "
        f"({machine}, commit {short_commit(record)})."
    )


@table(
    "schemes",
    "solver/navier_stokes",
    command="python -m benchmarks navier-stokes-schemes --device cuda --out results",
)
def schemes_table(found: Records) -> str:
    """Errors of the Navier–Stokes schemes relative to a refined solution and to the published scheme."""
    facts = found[""].details
    head = ["scheme", "grid", "type", "step", "s", "error", "difference from published"]
    rows = [
        [
            row["scheme"],
            f"{row['resolution']}²",
            row["dtype"],
            f"{row['dt']:.3g}",
            f"{row['seconds']:.2g}",
            f"{row['error'][-1]:.1e}",
            f"{row['from_first'][-1]:.1e}" if row["from_first"][-1] else "",
        ]
        for row in facts["rows"]
    ]
    note = f"Relative L2 at t = {facts['frames']}, mean of {facts['samples']} samples solved at once"
    return f"{markdown_table(head, rows)}\n\n{note}. {origin(found[''])}."


@table(
    "grids",
    "solver/navier_stokes_grids",
    command="python -m benchmarks navier-stokes-schemes --coarse --frames 20 --samples 2 --out results",
)
def grids_table(found: Records) -> str:
    """Error of the scheme rk4 on coarser grids, at half and at full time."""
    facts = found[""].details
    half, end = facts["frames"] // 2, facts["frames"]
    rows = [
        [f"{row['resolution']}²", f"{row['error'][half - 1]:.1e}", f"{row['error'][-1]:.1e}"]
        for row in facts["rows"]
    ]
    finest = f"{facts['rows'][0]['resolution']}²"
    note = f"Relative L2 against {finest} in float64, mean of {facts['samples']} samples"
    return f"{markdown_table(['grid', f't = {half}', f't = {end}'], rows)}\n\n{note}. {origin(found[''])}."


@table("meshes", "solver/forging_meshes", command="python -m benchmarks forging-meshes --out results")
def meshes_table(found: Records) -> str:
    """Difference between forgings on successive meshes."""
    facts = found[""].details
    rows = [
        [
            f"{row['nodes']} and {row['finer']}",
            f"{row['relative_l2']:.1e}",
            f"{row['slide_apart'][-1]:.2g} of {row['slide'][-1]:.2g} mm",
        ]
        for row in facts["rows"]
    ]
    head = ["nodes along the block", "relative L2 between them", "difference in slide, of slide"]
    inverted = facts["turned_corners"].items()
    shares = ", ".join(f"{1000 * share:.2g} on {nodes} nodes" for nodes, share in inverted)
    note = (
        f"Means of {facts['dies']} random dies, slides in the last frame. Elements of 1,000 with an inverted "
        f"corner there: {shares}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}. {origin(found[''])}."


@table("flows", "solver/airfoil_flows", command="python -m benchmarks airfoil-flows --out results")
def flows_table(found: Records) -> str:
    """Statistics of generated airfoil flows and those reported for the published files."""
    facts = found[""].details
    rows = [
        [row["what"], row["published"] or "", f"{row['mean']:.2g} ({row['least']:.2g} to {row['most']:.2g})"]
        for row in facts["rows"]
    ]
    note = f"Means of {facts['airfoils']} random airfoils (minimum to maximum)"
    return f"{markdown_table(['', 'published', 'ours'], rows)}\n\n{note}. {origin(found[''])}."
