"""Layers: slice attention, stems, embeddings, and the skeleton that the family shares."""

from linearno.nn.config import ReferenceDistances
from linearno.nn.embeddings import TimeEmbedding, UnifiedPosition
from linearno.nn.layers import GridConv, Linear, Mlp, OneLinear
from linearno.nn.protocol import ModelConfig
from linearno.nn.rollout import roll_out
from linearno.nn.slice_attention import SelfAttention, SliceAttention, Temperature
from linearno.nn.transformer import PointTransformer, Transformer

__all__ = [
    "GridConv",
    "Linear",
    "Mlp",
    "ModelConfig",
    "OneLinear",
    "PointTransformer",
    "ReferenceDistances",
    "SelfAttention",
    "SliceAttention",
    "Temperature",
    "TimeEmbedding",
    "Transformer",
    "UnifiedPosition",
    "roll_out",
]
