"""A preflight: AWS is asked for the facts, and all checks judge them."""
