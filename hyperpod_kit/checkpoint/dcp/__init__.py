"""Our checkpoints through torch.distributed.checkpoint, and reading them for another number of ranks."""
