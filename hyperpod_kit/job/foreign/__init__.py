"""Checkpoints of other frameworks, read only: which is the newest whole one, and how far it is proven."""
