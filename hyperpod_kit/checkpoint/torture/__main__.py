"""`python -m hyperpod_kit.checkpoint.torture`."""

import sys

from hyperpod_kit.checkpoint.torture.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
