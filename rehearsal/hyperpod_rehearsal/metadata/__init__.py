"""What a node asks of the cloud around it: instance metadata and names."""
