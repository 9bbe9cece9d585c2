"""Trained surrogates: bundles, mesh files, streaming within a given memory, export."""

from linearno.inference.bundle import Bundle, load
from linearno.inference.on_meshes import predict_mesh, query_mesh

__all__ = ["Bundle", "load", "predict_mesh", "query_mesh"]
