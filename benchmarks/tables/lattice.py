"""Tables of docs/data/shapenet-car.md: the lattice Boltzmann solver and the random cars."""

from benchmarks.tables.markdown import Records, markdown_table, origin, table


@table("lattice", "solver/lbm/verification", command="python -m benchmarks lattice-flows --out results")
def lattice_table(found: Records) -> str:
    """Errors on flows with known solutions."""
    facts = found[""].details
    vortices, pipes, sphere = facts["vortices"], facts["pipes"], facts["sphere"]
    rows = [
        ["Taylor–Green vortices, relative L2", f"{n}² cells", f"{error:.2g}"]
        for n, error in zip(vortices["cells"], vortices["relative_l2"], strict=True)
    ]
    rows.append(["their order", "", f"{found[''].value:.2f}"])
    rows += [
        ["decay rate in a circular pipe, relative error", f"radius {radius:g} cells", f"{100 * error:.2g} %"]
        for radius, error in zip(pipes["radius"], pipes["rate_error"], strict=True)
    ]
    rows += [
        [f"drag of a sphere at Re = 100 ({sphere['reference']} in free air)", f"{cells} cells", f"{drag:.3f}"]
        for cells, drag in sphere["drag_by_cells"].items()
    ]
    return f"{markdown_table(['flow', 'resolution', 'result'], rows)}\n\n{origin(found[''])}."


@table(
    "cars",
    "solver/lbm/cars",
    command="python -m benchmarks lattice-cars CARS.npz --out results",
)
def cars_table(found: Records) -> str:
    """Surface pressure and drag of cars with other solutions, by cell size."""
    return "\n\n".join(_cars(record_id, found) for record_id in found)


def _cars(record_id: str, found: Records) -> str:
    record = found[record_id]
    head = ["car", "correlation", "relative L2", "drag, N", "reference, N", "difference"]
    rows = [
        [
            str(index + 1),
            f"{row['correlation']:.3f}",
            f"{row['relative_l2']:.3f}",
            f"{row['drag']:.1f}",
            f"{row['reference_drag']:.1f}",
            f"{100 * row['drag_error']:+.1f} %",
        ]
        for index, row in enumerate(record.details["rows"])
    ]
    cells = " × ".join(map(str, record.details["cells"]))
    note = f"Cells of {100 * record.details['spacing']:g} cm, {cells} in the half channel"
    return f"{markdown_table(head, rows)}\n\n{note}. {origin(record)}."


@table("bodies", "solver/lbm/shapes", command="python -m benchmarks car-shapes --out results")
def bodies_table(found: Records) -> str:
    """Sizes of random cars, and of three cars of the published set."""
    facts = found[""].details
    rows = [
        [
            row["what"],
            f"{row['least']:.3g} to {row['most']:.3g}",
            "{:.3g} to {:.3g}".format(*row["reference"]) if "reference" in row else "",
        ]
        for row in facts["rows"]
    ]
    counts = ", ".join(f"{count} {rear}s" for rear, count in facts["rears"].items())
    note = (
        f"{facts['bodies']} random bodies: {counts}. {found[''].value:.0f} principal components have 99 % of "
        "the variance of their points"
    )
    head = ["", "random bodies", "three published cars"]
    return f"{markdown_table(head, rows)}\n\n{note}. {origin(found[''])}."


@table("lattice_speed", "bench/lbm", command="python -m benchmarks lattice-speed --device cuda --out results")
def speed_line(found: Records) -> str:
    record = found[""]
    cells = " × ".join(map(str, record.details["cells"]))
    return (
        f"{record.value:.3g} billion cell updates per second ({record.details['flows']} flows of {cells} "
        f"cells, {record.details['bytes_per_second'] / 1e12:.2g} TB/s). {origin(record)}."
    )
