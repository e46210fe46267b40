"""A tier that does not exist: the file and the lines that test_toy_tier.py adds to a copy of the tree."""
