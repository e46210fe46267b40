"""`python3 …/hyperpod_kit/job/__main__.py ARGS`: the job commands by the path of a file, whatever started them.

Ranks are wrapped by this, from a bundle, a checkout or a virtual environment, isolated from the user's PYTHONPATH.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # This directory itself must not be searched: its modules are named like others (`signals`, `options`).
    here = str(Path(__file__).absolute().parent)
    sys.path[:] = [str(Path(here).parents[1]), *(entry for entry in sys.path if entry != here)]
    from hyperpod_kit import ending
    from hyperpod_kit.job.cli import main

    sys.exit(ending.run(lambda: main(sys.argv[1:])))
