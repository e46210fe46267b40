"""A step of a job: its srun, what watches it from the batch host, and what is decided about it while it runs.

Standard library only, Python 3.8: this package is part of the bundle.
"""
