"""mount-s3 of a rehearsal: command line and file-system rules of Mountpoint for Amazon S3 (its doc/SEMANTICS.md)."""
