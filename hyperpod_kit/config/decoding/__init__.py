"""Objects of the configuration made into dataclasses of the model: begin with `decode`."""
