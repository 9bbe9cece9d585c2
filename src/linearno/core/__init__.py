"""Foundations used by all packages: errors, registry, config, files, device, randomness, provenance."""
