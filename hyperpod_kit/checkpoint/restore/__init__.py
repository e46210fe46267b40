"""A restore: choose a candidate that all ranks can prove, read it, and place its bytes. Begin with `restore`."""
