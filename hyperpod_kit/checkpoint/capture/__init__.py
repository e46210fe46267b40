"""A save in the trainer: from the state's tensors to a slot of shared memory. Begin with `staging`."""
