"""Meshes of any size through a model, in chunks of points and within a given memory."""

from linearno.inference.streaming.executor import OnChunk
from linearno.inference.streaming.memory_plan import Keep, Plan, plan
from linearno.inference.streaming.streamer import Streamer, stream

__all__ = ["Keep", "OnChunk", "Plan", "Streamer", "plan", "stream"]
