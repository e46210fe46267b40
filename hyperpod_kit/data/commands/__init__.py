"""`hyperpod-kit data`: one module for each kind of command."""
