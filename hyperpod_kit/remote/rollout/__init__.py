"""A bundle to nodes that run, batch by batch: what is done on each node, in which order, and the record of it."""
