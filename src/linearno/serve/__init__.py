"""A trained surrogate at work: meshes in, meshes out."""

from linearno.serve.meshes import MeshModel, predict_mesh, query_mesh

__all__ = ["MeshModel", "predict_mesh", "query_mesh"]
