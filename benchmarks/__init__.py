"""Measurements of speed, memory and accuracy: `python -m benchmarks VERB …` from the repository root."""
