"""What leaves a full file system: old checkpoints, to a cheaper place or away, and never the one that is needed."""
