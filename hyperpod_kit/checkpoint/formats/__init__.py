"""Files of other programs, read and written piece by piece."""
