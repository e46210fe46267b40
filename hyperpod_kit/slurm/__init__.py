"""Knowledge of Slurm without a side: host lists, scontrol output, job environment. Standard library only."""
