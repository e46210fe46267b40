"""`PYTHONPATH=/opt/hyperpod-kit/current/lib python3 -m hyperpod_kit.node facts|plan|apply|mounts|health …`.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import sys

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.node.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HyperpodKitError as error:
        print(f"error: {error}", *([f"hint: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)
        sys.exit(error.exit_code)
