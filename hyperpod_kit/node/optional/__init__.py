"""Steps that a node has only when the configuration asks for them, and how each is taken back."""
