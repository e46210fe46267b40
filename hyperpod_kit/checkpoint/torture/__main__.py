"""`python -m hyperpod_kit.checkpoint.torture`."""

import sys

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.torture.cli import main

if __name__ == "__main__":
    sys.exit(ending.program(lambda: main(sys.argv[1:])))
