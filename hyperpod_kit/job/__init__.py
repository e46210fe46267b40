"""The one supervisor of a training job: choose a checkpoint, run, watch, classify, retry. Standard library only."""
