"""The mount clients of a node: what is there, what is missing, and how a pinned package gets in."""
