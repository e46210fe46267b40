"""What each framework writes beside its checkpoints: one file a framework, chosen in `newest`."""
