"""`hyperpod-kit job` and `hyperpod-kit checkpoint`: the same two programs that run on a node, argparse and all."""

from __future__ import annotations

from hyperpod_kit.cli.lazy import Passthrough

job = Passthrough("job", "hyperpod_kit.job.cli:main")
checkpoint = Passthrough("checkpoint", "hyperpod_kit.checkpoint.cli:main")
