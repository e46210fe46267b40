"""hyperpod-kit: storage, auto-resume and checkpoints for Slurm clusters, first of all SageMaker HyperPod."""

import os

__version__ = "0.1.0"

# What came by /opt/hyperpod-kit/current keeps to its bundle when another one is installed: modules that are imported
# later, of an agent or a rank's wrapper that has run for days, must not be those of another release.
__path__ = [os.path.realpath(entry) for entry in __path__]
