"""Solvers that generate the data of the benchmarks; random generators are arguments, no file access."""
