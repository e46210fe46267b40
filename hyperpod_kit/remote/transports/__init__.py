"""The ways to the nodes' reports, one file each: begin with `transport` and `auto_transport`."""
