"""What the toolkit adds to a node's Slurm."""
