"""`job status`: what the records of a checkpoint root tell of its jobs, as a table and as a page.

Standard library only, Python 3.8: this package is part of the bundle.
"""
