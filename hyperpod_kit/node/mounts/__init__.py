"""How each kind of mount is made and recognised: one file a kind, and what they share."""
