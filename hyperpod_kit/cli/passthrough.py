"""`hyperpod-kit job` and `hyperpod-kit checkpoint`: the same two programs that run on a node, argparse and all; and
`hyperpod-kit data`, which a training job's environment has too. `hyperpod-kit fan-out` is the job's."""

from __future__ import annotations

from hyperpod_kit.checkpoint.cli import WITH_TORCH
from hyperpod_kit.cli.terminal.lazy import Passthrough

job = Passthrough("job", "hyperpod_kit.job.cli:main", {"": "hyperpod_kit.job.program.parser:build_parser"})
checkpoint = Passthrough(
    "checkpoint",
    "hyperpod_kit.checkpoint.cli:main",
    {
        "": "hyperpod_kit.checkpoint.commands.cli:build_parser",
        **{word: f"{module}:build_parser" for word, module in WITH_TORCH.items()},
    },
)
data = Passthrough("data", "hyperpod_kit.data.cli:perform", {"": "hyperpod_kit.data.cli:build_parser"})
fan_out = Passthrough(
    "fan-out",
    "hyperpod_kit.job.fan_out.command:main",
    {"": "hyperpod_kit.job.fan_out.command:build_parser"},
)
