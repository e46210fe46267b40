"""Commands that change or list clusters and their nodes."""
