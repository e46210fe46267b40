"""A bundle's entry script under a temporary directory, without root: begin with `sandbox`."""
