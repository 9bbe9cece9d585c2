"""What every room may use: errors, registry, config, files, device, randomness, provenance."""
