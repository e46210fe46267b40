"""The steps of a node's creation: each file exports its own as STEP, and `node/creation/steps.py` is their order."""
