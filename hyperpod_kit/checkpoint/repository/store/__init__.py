"""Where checkpoints lie: one small set of operations over memory, file systems and S3."""
