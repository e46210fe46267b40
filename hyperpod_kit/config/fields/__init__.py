"""What every key of the configuration means: begin with `fields`."""
