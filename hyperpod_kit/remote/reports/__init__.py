"""What nodes say of their mounts, judged and shown: begin with `validate_mounts`."""
