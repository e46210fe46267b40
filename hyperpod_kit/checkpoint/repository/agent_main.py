"""The former name of `checkpoint.agent.agent_main`: for a trainer that started before its package was updated."""

from __future__ import annotations

import sys

from hyperpod_kit.checkpoint.agent.agent_main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
