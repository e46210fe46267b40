"""One file a concern: which read-only calls are made, and what of their answers becomes a fact."""
