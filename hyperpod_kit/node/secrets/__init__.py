"""Secrets on a node: fetched by ARN with the node's own role, kept in memory, never in a bundle, a log or an argv."""
