"""The one idea: gather N points into M slices, merge and mix the slices, scatter them back."""

from linearno.ops.attention import Phi, Psi, linear_attention, slice_means
from linearno.ops.dense import dense_linear_attention, slice_weights
from linearno.ops.verbs import Score, State, gather, merge, scatter

__all__ = [
    "Phi",
    "Psi",
    "Score",
    "State",
    "dense_linear_attention",
    "gather",
    "linear_attention",
    "merge",
    "scatter",
    "slice_means",
    "slice_weights",
]
