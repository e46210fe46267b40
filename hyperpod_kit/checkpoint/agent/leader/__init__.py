"""What only rank 0's agent does: hear all ranks, decide, commit. Begin with `coordinator`."""
