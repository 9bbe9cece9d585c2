"""Solvers that make data: one equation a file, random state passed in, no files."""
