"""What every part of `job run` uses: the report, signals, the allocation, and what ranks leave at their end.

Standard library only, Python 3.8: this package is part of the bundle.
"""
