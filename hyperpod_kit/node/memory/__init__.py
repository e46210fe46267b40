"""Shared memory that jobs left on this node, where no Epilog came to save and free it."""
