"""How a node is reached: by ssh with verified host keys, or by SSM. Begin with `ssh` and `ssm_sessions`."""
