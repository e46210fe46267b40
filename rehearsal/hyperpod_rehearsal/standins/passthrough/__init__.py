"""A file system that hands every operation to a directory: the EFS and Lustre of a rehearsal."""
