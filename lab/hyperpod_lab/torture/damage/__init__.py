"""Every kind of damage to a root, one at a time: begin with `damage`."""
