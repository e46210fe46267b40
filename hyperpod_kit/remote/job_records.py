"""What `job status` tells of a checkpoint root, asked here, or on a node where the root is not to be had here."""

from __future__ import annotations

import sys
from typing import Any, Mapping, Optional

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word, parse_json_after_banner
from hyperpod_kit.run import LocalRunner, Runner

SECONDS = 60.0
"""For one root in one place."""


def query_root(root: str, node: Optional[Runner], reasons: list[str]) -> Optional[Mapping[str, Any]]:
    """Return the JSON of `job status --root`; None where no place has it, and `reasons` gets a sentence for each."""
    command = ["job", "status", "--root", root, "--json"]
    ways: list[tuple[str, Runner, list[str]]] = [
        ("here", LocalRunner(), [sys.executable, "-m", "hyperpod_kit", *command])
    ]
    if node is not None:
        # A root is its owner's; who administers may become root, which reads it as the owner.
        ways.append(("on a node", node, ["hyperpod-kit", *command]))
        ways.append(("on a node", node, ["sudo", "-n", "hyperpod-kit", *command]))
    for place, runner, argv in ways:
        try:
            done = runner.run(argv, timeout=SECONDS, check=False)
            if done.returncode == 0:
                return parse_json_after_banner(done.stdout)
            reason = f"{place}: {last_line_or_nothing_word(done.stderr, done.stdout)}"
        except (HyperpodKitError, ValueError) as err:
            reason = f"{place}: {err}"
        if reason not in reasons:
            reasons.append(reason)
    return None
