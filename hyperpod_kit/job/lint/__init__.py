"""`job lint` and `job doctor`: what keeps a job from coming back, in its script and in Slurm's configuration.

Standard library only, Python 3.8: this package is part of the bundle.
"""
