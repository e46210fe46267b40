"""How each kind of mount is written, one file for each: its keys, its short form, its rules."""
