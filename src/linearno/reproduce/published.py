"""Results printed in Hu et al. (2026), https://arxiv.org/abs/2511.06294.

None stands for "/" in the paper: the authors ran no such combination.
"""

from typing import NamedTuple

STANDARD = ("airfoil", "pipe", "plasticity", "ns", "darcy", "elasticity")
ABLATED = ("airfoil", "darcy", "elasticity")  # benchmarks with a printed table of normalisation dimensions
RATES = ("burgers20", "burgers10", "burgers5", "burgers1", "burgers05")

Row = tuple[float | None, ...]

# Table 1: relative L2 on STANDARD
TABLE1: dict[str, Row] = {
    "fno": (None, None, None, 0.1556, 0.0108, None),
    "u-fno": (0.0269, 0.0056, 0.0039, 0.2231, 0.0183, 0.0239),
    "geo-fno": (0.0138, 0.0067, 0.0074, 0.1556, 0.0108, 0.0229),
    "f-fno": (0.0078, 0.0070, 0.0047, 0.2322, 0.0077, 0.0263),
    "galerkin": (0.0118, 0.0098, 0.0120, 0.1401, 0.0084, 0.0240),
    "oformer": (0.0183, 0.0168, 0.0017, 0.1705, 0.0124, 0.0183),
    "gnot": (0.0076, 0.0047, 0.0336, 0.1380, 0.0105, 0.0086),
    "factformer": (0.0071, 0.0060, 0.0312, 0.1214, 0.0109, None),
    "ono": (0.0061, 0.0052, 0.0048, 0.1195, 0.0076, 0.0118),
    "lsm": (0.0059, 0.0050, 0.0025, 0.1535, 0.0065, 0.0218),
    "lno": (0.0053, 0.0031, 0.0028, 0.0830, 0.0063, 0.0066),
    "transolver": (0.0053, 0.0030, 0.0013, 0.0882, 0.0055, 0.0065),
    "transolver++": (0.0051, 0.0027, 0.0014, 0.1010, 0.0056, 0.0064),
    "linearno": (0.0049, 0.0024, 0.0011, 0.0699, 0.0050, 0.0050),
}
# Table 2: volume, surface, lift or drag coefficient and its rank correlation; AirfRANS, then ShapeNet-Car
TABLE2: dict[str, Row] = {
    "mlp": (0.0081, 0.0200, 0.2108, 0.9932, 0.0512, 0.1304, 0.0307, 0.9496),
    "graphsage": (0.0087, 0.0184, 0.1476, 0.9964, 0.0461, 0.1050, 0.0270, 0.9695),
    "pointnet": (0.0253, 0.0996, 0.1973, 0.9919, 0.0494, 0.1104, 0.0298, 0.9583),
    "graphunet": (0.0076, 0.0144, 0.1677, 0.9949, 0.0471, 0.1102, 0.0226, 0.9725),
    "meshgraphnet": (0.0214, 0.0387, 0.2252, 0.9945, 0.0354, 0.0781, 0.0168, 0.9840),
    "gno": (0.0269, 0.0405, 0.2016, 0.9938, 0.0383, 0.0815, 0.0172, 0.9834),
    "geo-fno": (0.0361, 0.0301, 0.6161, 0.9257, 0.1670, 0.2378, 0.0664, 0.8280),
    "galerkin": (0.0074, 0.0159, 0.2336, 0.9951, 0.0339, 0.0878, 0.0179, 0.9764),
    "gnot": (0.0049, 0.0152, 0.1992, 0.9942, 0.0329, 0.0798, 0.0178, 0.9833),
    "gino": (0.0297, 0.0482, 0.1821, 0.9958, 0.0386, 0.0810, 0.0184, 0.9826),
    "lno": (0.0214, 0.0268, 0.1480, 0.9744, 0.0269, 0.0870, 0.0174, 0.9781),
    "transolver": (0.0023, 0.0085, 0.1230, 0.9978, 0.0221, 0.0785, 0.0117, 0.9914),
    "transolver++": (0.0068, 0.0159, 0.1880, 0.9910, 0.0226, 0.0800, 0.0132, 0.9914),
    "linearno": (0.0011, 0.0077, 0.0491, 0.9992, 0.0194, 0.0754, 0.0106, 0.9925),
}


class Column(NamedTuple):
    """A column of Table 2 or Appendix D: a metric of a benchmark.

    Args:
        title: as the table prints it.
        benchmark: registered name of the data set, or of a variant.
        metric: name of the metric or summary of the benchmark.
        higher: whether larger values are better.
    """

    title: str
    benchmark: str
    metric: str
    higher: bool = False


def _columns(title: str, benchmark: str, force: str, letter: str) -> tuple[Column, ...]:
    return (
        Column(f"{title} volume", benchmark, "volume"),
        Column(f"{title} surface", benchmark, "surface"),
        Column(f"{title} C_{letter}", benchmark, f"{force}_error"),
        Column(f"{title} ρ_{letter}", benchmark, f"{force}_spearman", higher=True),
    )


TABLE2_COLUMNS = (
    *_columns("AirfRANS", "airfrans", "lift", "L"),
    *_columns("Car", "shapenet-car", "drag", "D"),
)
# Table 3 with its appendix: millions of parameters and GFLOPs on STANDARD
TABLE3: dict[str, tuple[Row, Row]] = {
    "transolver": ((2.81, 3.07, 2.84, 11.23, 2.83, 0.71), (32.38, 52.17, 9.10, 46.16, 20.87, 0.76)),
    "linearno": ((1.77, 1.77, 1.80, 3.38, 1.77, 0.59), (21.34, 31.51, 6.03, 15.53, 13.68, 0.69)),
}
# Table 4 with its appendix: generalisation (own ψ) and simplification (no attention among slices) on STANDARD
TABLE4: dict[str, Row] = {
    "1": (0.0067, 0.0029, 0.0016, 0.1261, 0.0064, 0.0069),
    "2": (0.0054, 0.0032, 0.0013, 0.0711, 0.0061, 0.0062),
    "3": (0.0071, 0.0030, 0.0015, 0.1229, 0.0052, 0.0064),
    "4": (0.0049, 0.0024, 0.0011, 0.0699, 0.0050, 0.0050),
}
# Table 5 with its appendix: number of slices on STANDARD
TABLE5: dict[str, Row] = {
    "16": (0.0052, 0.0030, 0.0013, 0.0771, 0.0056, 0.0062),
    "32": (0.0053, 0.0028, 0.0014, 0.0699, 0.0053, 0.0056),
    "48": (0.0054, 0.0029, 0.0012, 0.0691, 0.0051, 0.0052),
    "64": (0.0049, 0.0024, 0.0011, 0.0650, 0.0050, 0.0050),
    "96": (0.0052, 0.0026, 0.0011, 0.0643, 0.0048, 0.0056),
    "128": (0.0047, 0.0026, 0.0011, 0.0612, 0.0050, 0.0051),
    "256": (0.0050, 0.0022, 0.0010, 0.0563, 0.0049, 0.0046),
}
# Table 6: dimensions of the softmax of φ and of ψ on ABLATED
TABLE6: dict[str, Row] = {
    "φ over N, ψ over M": (0.0059, 0.0055, 0.0112),
    "φ over M, ψ over M": (0.0061, 0.0060, 0.0081),
    "φ over N, ψ over N": (0.0068, 0.0056, 0.0095),
    "φ over M, ψ over N": (0.0049, 0.0050, 0.0050),
}
# Appendix D: AirfRANS out of distribution; four columns for Reynolds numbers, four for angles of attack
OOD: dict[str, Row] = {
    "mlp": (0.0669, 0.1153, 0.6205, 0.9578, 0.1309, 0.3311, 0.4128, 0.9572),
    "graphsage": (0.0798, 0.1254, 0.4333, 0.9707, 0.1192, 0.2359, 0.2538, 0.9894),
    "pointnet": (0.0838, 0.1403, 0.3836, 0.9806, 0.2021, 0.4649, 0.4425, 0.9784),
    "graphunet": (0.0538, 0.1168, 0.4664, 0.9645, 0.0979, 0.2391, 0.3756, 0.9816),
    "meshgraphnet": (0.2789, 0.2382, 1.7718, 0.7631, 0.4902, 1.1071, 0.6525, 0.8927),
    "gno": (0.0833, 0.1562, 0.4408, 0.9878, 0.1626, 0.2359, 0.3038, 0.9884),
    "galerkin": (0.0330, 0.0972, 0.4615, 0.9826, 0.0577, 0.2773, 0.3814, 0.9821),
    "gnot": (0.0305, 0.0959, 0.3268, 0.9865, 0.0471, 0.3466, 0.3497, 0.9868),
    "gino": (0.0839, 0.1825, 0.4180, 0.9645, 0.1589, 0.2469, 0.2583, 0.9923),
    "lno": (0.0825, 0.1762, 0.7440, 0.9399, 0.0346, 0.0790, 0.3732, 0.9905),
    "transolver": (0.0122, 0.0550, 0.1622, 0.9904, 0.0480, 0.2335, 0.2438, 0.9948),
    "linearno": (0.0112, 0.0372, 0.2400, 0.9951, 0.0464, 0.2500, 0.0987, 0.9963),
}
OOD_COLUMNS = (
    *_columns("Reynolds", "airfrans-reynolds", "lift", "L"),
    *_columns("angles", "airfrans-aoa", "lift", "L"),
)
INDUSTRIAL = {column.benchmark for column in (*TABLE2_COLUMNS, *OOD_COLUMNS)}
# Appendix E: relative MAE of field reconstruction on RATES
SUPERRESOLUTION: dict[str, Row] = {
    "deeponet": (0.0251, 0.0259, 0.0282, 0.0325, 0.0482),
    "gnot": (0.0112, 0.0139, 0.0162, 0.0163, 0.0256),
    "lno": (0.0075, 0.0048, 0.0121, 0.0191, 0.0210),
    "linearno": (0.0073, 0.0071, 0.0078, 0.0124, 0.0151),
}
