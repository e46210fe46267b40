"""A configuration from what exists: a cluster of AWS, or lifecycle scripts. Begin with `from_aws`."""
