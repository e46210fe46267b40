"""One file a format of another program: how it is read, and how it is written."""
