"""`hyperpod-kit data bench`: the loader of training data beside a plain read and other loaders of the same files."""
