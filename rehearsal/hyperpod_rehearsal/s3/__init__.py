"""An S3 endpoint for rehearsals and tests: on disk, conditional, with faults on demand."""
