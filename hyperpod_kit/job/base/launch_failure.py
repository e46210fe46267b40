"""Records of launches that never began: what could not be executed, and on which node.

Such a launch is no crash of the checkpoint that it would have loaded. The wrapper of a node's first rank leaves
`<state>/launch-failures/<attempt>/<rank>.json` where it cannot start the command. Where no wrapper begins either,
launch_probe.py checks the node.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import shlex
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from hyperpod_kit.slurm import write_once
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from hyperpod_kit.untrusted.text import clean_one_line

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes of a shell, and of our wrapper, for a command that cannot be started."""

NOT_STARTED = (NOT_EXECUTABLE, NOT_FOUND)

_LONGEST = 200
_BUNDLES = "/opt/hyperpod-kit/"


class LaunchFailure(NamedTuple):
    """`program` could not be executed on `node`. `launch` is as in exits.Exit, "" where it is not known."""

    node: str
    program: str
    reason: str
    launch: str = ""

    @property
    def cause(self) -> str:
        """The program and the reason, the same on every node that has them."""
        return f"{self.program}: {self.reason}"


def code_of(error: OSError) -> int:
    """Return the exit code of the wrapper for this error."""
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND
    return NOT_EXECUTABLE


def directory(state: str, attempt: str) -> str:
    """Return the directory of an attempt's records."""
    return os.path.join(state, "launch-failures", attempt)


def write(state: str, attempt: str, rank: int, failure: LaunchFailure) -> None:
    """Write the record of a rank once; an earlier one of the same rank stays. Raises OSError."""
    write_once.write_new_record(directory(state, attempt), str(rank), failure._asdict())


def read(state: str, attempt: str, launch: Optional[str] = None) -> List[LaunchFailure]:
    """Return the records that are there, by node; only those of `launch` where it is given. Raises OSError."""
    if "/" in attempt or attempt in ("", ".", ".."):
        return []
    records = (_failure(value) for _, _, value in write_once.read_all_records(directory(state, attempt)))
    failures = [record for record in records if record is not None]
    if launch is not None:
        failures = [record for record in failures if record.launch == launch]
    return sorted(failures, key=lambda record: (record.node, record.program))


def _failure(value: Mapping[str, Any]) -> Optional[LaunchFailure]:
    """Return the record in a JSON object, None for what no wrapper writes."""
    try:
        failure = dataclass_from_json(LaunchFailure, value, ignore_unknown=True, require_all=True)
    except ValueError:
        return None
    return LaunchFailure(*(clean_one_line(text, _LONGEST) for text in failure))


def causes(failures: Sequence[LaunchFailure]) -> str:
    """Return each cause once, with its nodes: `torchrun: No such file or directory (n1, n2)`."""
    nodes: Dict[str, List[str]] = {}
    for failure in failures:
        nodes.setdefault(failure.cause, []).append(failure.node)
    return "; ".join(f"{cause} ({_some(names)})" for cause, names in nodes.items())


def advice(failures: Sequence[LaunchFailure], code: int, *, by_srun: bool) -> str:
    """Return what the user can type next.

    Args:
        code: That of the first rank, or of srun where no rank has left one.
        by_srun: Whether the ranks are started by srun from a batch script, and not by `job run --local`.
    """
    activate = "activate its environment"
    if by_srun:
        activate += " in the batch script"
    if failures:
        return _advice(failures[0], activate, by_srun)
    if code in NOT_STARTED:
        return (
            f"the command's own error message is above ({NOT_FOUND}: not found, {NOT_EXECUTABLE}: not executable); "
            f"{activate}, or give the whole path of what it starts"
        )
    return (
        "srun's own error message is above; to try it by hand, with the same --srun-args: srun --nodes=1 --ntasks=1 "
        "true"
    )


def _advice(failure: LaunchFailure, activate: str, by_srun: bool) -> str:
    if failure.program.startswith(_BUNDLES):
        return f"hyperpod-kit diff shows which bundle {failure.node} has; install it there again, or replace the node"
    program = shlex.quote(failure.program)
    on_node = ""
    if by_srun:
        on_node = f"srun --nodes=1 --nodelist={failure.node} "
    if "/" in failure.program:
        return f"{on_node}ls -l {program}"
    check_command = f"command -v {program}"
    if by_srun:
        check_command = f"{on_node}sh -c {shlex.quote(check_command)}"
    return f"{check_command}; {activate}, or give its whole path"


def _some(names: Sequence[str]) -> str:
    if len(names) <= 4:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3} more"
