"""What others wrote: their files, their words, their lines on a socket. Each is taken in at one place, with its limits.

Standard library only, Python 3.8: this package is part of the bundle.
"""
