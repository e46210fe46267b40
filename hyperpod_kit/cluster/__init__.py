"""Life of a cluster: create, wait, nodes, delete."""
