"""`hyperpod-kit rehearse`."""
