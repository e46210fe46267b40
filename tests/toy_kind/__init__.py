"""A kind of mount that does not exist: the five files and the lines that test_toy_kind.py adds to a copy of the tree.

`model.py` becomes `hyperpod_kit/model/mounts/toy.py`, and so on; they are files of the product, not tests.
"""
