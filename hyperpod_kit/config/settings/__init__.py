"""The configuration as dataclasses, and findings about it: begin with `settings`."""
