"""The wrapper around each rank, which is Slurm's task: it starts the rank, reports its steps and records its end.

Standard library only, Python 3.8: this package is part of the bundle.
"""
