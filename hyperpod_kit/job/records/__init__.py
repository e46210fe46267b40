"""What `job run` keeps below a checkpoint root: the ledger, notes of the running attempt, and where they lie.

Standard library only, Python 3.8: this package is part of the bundle.
"""
