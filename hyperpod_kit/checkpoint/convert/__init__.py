"""Checkpoints of other programs, read and written: begin with `import_checkpoint` and `export_checkpoint`."""
