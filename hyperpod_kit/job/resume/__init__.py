"""The checkpoint that an attempt starts from: how it is chosen, proved, and agreed on by all ranks.

Standard library only, Python 3.8: this package is part of the bundle.
"""
