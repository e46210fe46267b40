"""Python environments for jobs: how their directory is laid out, and how one is made.

Standard library only, Python 3.8: this package is part of the bundle.
"""
