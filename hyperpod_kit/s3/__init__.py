"""Amazon S3 with nothing but the standard library, for checkpoints and training data."""
