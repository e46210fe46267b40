"""One run of a job's batch script: `job run`.

`supervisor.py` begins it and goes from attempt to attempt: `attempt.py` runs one and observes it, `outcome.py`
classifies what was observed, `decision.py` decides what follows, and the supervisor does that. `step_machine.py`
decides in the same way while a step runs, and `step_supervision.py` observes and acts for it.

Standard library only, Python 3.8: this package is part of the bundle.
"""
