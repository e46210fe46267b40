"""The line with which a training program reports where it starts: on rank 0's standard error, or in its logs."""

from __future__ import annotations

import contextlib
import logging
import sys

from hyperpod_kit.checkpoint.restore.results import Fresh, Restored
from hyperpod_kit.untrusted import terminal

_LOG = logging.getLogger("hyperpod_kit.checkpoint")
_PREFIX = "hyperpod-kit: "
_MEGABYTE = 1e6


def report_start(root: str, result: Restored | Fresh) -> None:
    """Report what was restored, or that nothing was; rank 0 calls it after each restore.

    A program that has set up logging, or a level for this logger, gets the line there. Without either, Python's logging
    would drop a line of level INFO, and a resume would be silent.
    """
    line = _describe(root, result)
    if _LOG.level != logging.NOTSET or (_LOG.isEnabledFor(logging.INFO) and _LOG.hasHandlers()):
        _LOG.info("%s", line)
        return
    with contextlib.suppress(OSError, ValueError):  # a standard error that is full or closed ends no training
        terminal.write_escaping_unencodable(sys.stderr, terminal.sanitize_lines(f"{_PREFIX}{line}") + "\n")
        sys.stderr.flush()


def _describe(root: str, result: Restored | Fresh) -> str:
    if isinstance(result, Fresh):
        line = f"training starts at step 0: no checkpoint to restore below {root}"
    else:
        megabytes = result.bytes / _MEGABYTE
        line = (
            f"training resumes at step {result.next_step} from {result.checkpoint_id} in {result.tier}: "
            f"{megabytes:.1f} MB restored and verified in {result.seconds:.1f} s"
        )
    if result.rejected:
        rejected = ", ".join(f"{checkpoint_id} ({reason})" for checkpoint_id, reason in result.rejected)
        line += f"; not restored: {rejected}"
    return line
