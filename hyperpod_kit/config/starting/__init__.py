"""A first configuration, from a few answers: begin with `starter`."""
