"""Records as Markdown tables."""
