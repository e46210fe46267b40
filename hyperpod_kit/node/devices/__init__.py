"""GPUs and EFA devices of a node: look, count, keep jobs away, tell Slurm."""
