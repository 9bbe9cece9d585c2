"""Linear attention: gather N points into M slices, merge and mix the slices, scatter them back."""

from linearno.ops.attention import (
    Phi,
    Psi,
    linear_attention,
    self_attention,
    self_attention_of_means,
    slice_means,
)
from linearno.ops.backend import Backend, backend
from linearno.ops.gather_scatter import gather, gather_with_passthrough, scatter
from linearno.ops.ragged import Segments
from linearno.ops.reference import dense_linear_attention, slice_weights
from linearno.ops.sharded import all_gather, is_sharded, merge_ranks, sharded
from linearno.ops.state import Score, State, merge
from linearno.ops.weight_cache import WeightCache

__all__ = [
    "Backend",
    "Phi",
    "Psi",
    "Score",
    "Segments",
    "State",
    "WeightCache",
    "all_gather",
    "backend",
    "dense_linear_attention",
    "gather",
    "gather_with_passthrough",
    "is_sharded",
    "linear_attention",
    "merge",
    "merge_ranks",
    "scatter",
    "self_attention",
    "self_attention_of_means",
    "sharded",
    "slice_means",
    "slice_weights",
]
