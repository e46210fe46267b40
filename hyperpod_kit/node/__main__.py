"""`PYTHONPATH=/opt/hyperpod-kit/current/lib python3 -m hyperpod_kit.node facts|plan|apply|mounts|health …`.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import sys

from hyperpod_kit import ending
from hyperpod_kit.node.cli import run

if __name__ == "__main__":
    sys.exit(ending.run_program_ending_on_ctrl_c(lambda: run(sys.argv[1:])))
