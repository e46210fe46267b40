"""Whether the mounts of this node serve, over time: a record of each, bounded repairs, and who is told."""
