"""Generate a benchmark with its solver: worker processes, a resumable plan, and the card of the result."""
