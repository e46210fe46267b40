"""provisioning_parameters.json -> model: load, validate, emit."""
