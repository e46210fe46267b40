"""Limits that a file system enforces, one file a file system: `backends` chooses."""
