"""hyperpod-kit: storage, auto-resume and checkpoints for Slurm clusters, first of all SageMaker HyperPod."""

__version__ = "0.1.0"
