"""What a cluster stands on, as a template: network, security groups, file systems, buckets, roles."""
