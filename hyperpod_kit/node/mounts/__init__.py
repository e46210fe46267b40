"""How mounts are made and kept: through their units, by their kind's command, with the flags that they must have."""
