"""The FUSE kernel protocol in plain Python: no libfuse, exact error numbers."""
