"""Commands that look at the nodes of a cluster or open a shell on one."""
