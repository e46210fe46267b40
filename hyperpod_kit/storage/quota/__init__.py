"""How much a directory may hold: set it, show it, tell its owner before it is used up, stop where AWS has no limit."""
