"""A checkpoint, as another program reads it."""
