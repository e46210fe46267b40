"""A HyperPod on one Linux machine."""
