"""Trained models at work: bundles, meshes of any size in chunks of points, exports."""

from linearno.inference.bundle import Bundle, load

__all__ = ["Bundle", "load"]
