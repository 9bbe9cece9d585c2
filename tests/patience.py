"""How long a test waits for another process."""

PATIENCE = 300  # s: it ends a test that hangs, on a host however slow, and measures no speed
