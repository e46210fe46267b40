"""Runners that reach real nodes, and what is asked of them."""
