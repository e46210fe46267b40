"""Captures sealed, copied to the node's disk and to storage: begin with `seal` and `persist`."""
