"""Arrays to matplotlib figures. Knows no files and no models, and leaves no state in pyplot."""

from linearno.viz.convergence import convergence_figure
from linearno.viz.curves import ErrorSet, TrainingCurve, error_figure, training_figure
from linearno.viz.encode import data_uri, png_bytes
from linearno.viz.fields import Case, case_figure, field_figure
from linearno.viz.slices import RankSet, dominant_slices_figure, rank_figure, slice_weights_figure

__all__ = [
    "Case",
    "ErrorSet",
    "RankSet",
    "TrainingCurve",
    "case_figure",
    "convergence_figure",
    "data_uri",
    "dominant_slices_figure",
    "error_figure",
    "field_figure",
    "png_bytes",
    "rank_figure",
    "slice_weights_figure",
    "training_figure",
]
