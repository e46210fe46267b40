"""How samples lie in a file: one module a format."""
