"""Meshes of any size through a model, in chunks of points and within a given memory."""

from linearno.streaming.passes import OnChunk
from linearno.streaming.planning import Keep, Plan, plan
from linearno.streaming.streamer import Streamer, stream

__all__ = ["Keep", "OnChunk", "Plan", "Streamer", "plan", "stream"]
