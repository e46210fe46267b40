"""Classify what happened to an attempt, and decide what follows: classes, budgets and rules, all pure.

Standard library only, Python 3.8: this package is part of the bundle.
"""
