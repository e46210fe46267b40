"""Other people's modules and optimizers: what a restore makes of them, beside what torch's own loading does.

`python -m tests.zoo` (`make zoo`): tests/zoo/__main__.py.
"""
