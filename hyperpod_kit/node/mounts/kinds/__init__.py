"""One file for each kind of mount: the command that makes it, what it needs before, and how it is told from others."""
