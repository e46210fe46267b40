"""The guard of Slurm on one node: look with deadlines, judge, put back what is ours, leave the rest to reports."""
