"""The words that the admin side and the node side share: frozen dataclasses, standard library only."""
