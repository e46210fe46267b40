"""What becomes of each save: its handle, its schedule and the count of failures. Begin with `handle.Handle`."""
