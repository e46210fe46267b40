"""`python -m hyperpod_lab.torture`."""

import sys

from hyperpod_kit import ending
from hyperpod_lab.torture.cli import main

if __name__ == "__main__":
    sys.exit(ending.run_program_ending_on_ctrl_c(lambda: main(sys.argv[1:])))
