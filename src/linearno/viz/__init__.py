"""Matplotlib figures from arrays, without files, models or pyplot state."""

from linearno.viz.airfoil import WallPressure, polar_figure, wall_pressure_figure
from linearno.viz.curves import (
    ErrorSet,
    FrameErrors,
    TrainingCurve,
    error_figure,
    error_over_time_figure,
    training_figure,
)
from linearno.viz.encode import data_uri, gif_bytes, png_bytes
from linearno.viz.fields import Case, case_figure, field_figure, strip_figure
from linearno.viz.rollout import RolloutCase, frame_figure, rollout_figure, rollout_frames
from linearno.viz.slices import RankSet, dominant_slices_figure, rank_figure, slice_weights_figure

__all__ = [
    "Case",
    "ErrorSet",
    "FrameErrors",
    "RankSet",
    "RolloutCase",
    "TrainingCurve",
    "WallPressure",
    "case_figure",
    "data_uri",
    "dominant_slices_figure",
    "error_figure",
    "error_over_time_figure",
    "field_figure",
    "frame_figure",
    "gif_bytes",
    "png_bytes",
    "polar_figure",
    "rank_figure",
    "rollout_figure",
    "rollout_frames",
    "slice_weights_figure",
    "strip_figure",
    "training_figure",
    "wall_pressure_figure",
]
