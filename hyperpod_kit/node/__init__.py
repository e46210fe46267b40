"""Everything that runs on a node: facts -> plan -> apply, mounts, health. Standard library only."""
