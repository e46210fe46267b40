"""Probe the nodes from which no rank's wrapper has called: whether they have what a launch needs.

The shell does that alone, as our own program may be what is missing.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import subprocess
from typing import Dict, List, Mapping, Sequence, Tuple

from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.base.launch_failure import NOT_STARTED, LaunchFailure
from hyperpod_kit.job.decide.outcome import Observation, may_not_have_begun
from hyperpod_kit.job.step import bare_step, srun_step
from hyperpod_kit.job.step.run_context import RunContext
from hyperpod_kit.job.step.storage import DEADLINE

PURPOSE = "launch-probe"

PATIENCE = 4 * DEADLINE
"""Seconds after which nodes that have not answered are passed over."""

_OUTPUT_PREFIX = "hpk-launch-probe"
_ABSENT, _FORBIDDEN = "absent", "forbidden"
_REASONS = {_ABSENT: "No such file or directory", _FORBIDDEN: "Permission denied"}

# $1: what has to be readable; the others have to be executable. One line for each that is not.
_SCRIPT = f"""\
say() {{ printf '{_OUTPUT_PREFIX} %s %s %s\\n' "${{SLURMD_NODENAME:-unknown}}" "$1" "$2"; }}
[ -e "$1" ] || say {_ABSENT} "$1"
[ ! -e "$1" ] || [ -r "$1" ] || say {_FORBIDDEN} "$1"
shift
for program do
    [ -e "$program" ] || say {_ABSENT} "$program"
    [ ! -e "$program" ] || [ -x "$program" ] || say {_FORBIDDEN} "$program"
done"""


def probe_unheard_nodes_if_launch_failed(observation: Observation, context: RunContext) -> Observation:
    """Return the observation with what the unheard nodes lack, where that may be why the launch has failed."""
    if observation.launch_failures or not observation.unheard or not may_not_have_begun(observation):
        return observation
    in_container = context.container is not None  # with a Python and a command of the image's own
    is_container_error = in_container and observation.code in (ExitCode.NO_PYTHON, ExitCode.NOT_MOUNTED)
    if is_container_error or any(record.code in NOT_STARTED for record in observation.exits):
        return observation  # a wrapper has reported what is missing
    main, python = srun_step.path_of_kit_main_on_nodes(), srun_step.kit_command_on_any_node()[0]
    programs: List[str] = []
    if not in_container:
        programs = [python, *(program for program in context.options.command[:1] if program.startswith("/"))]
    probe_command = ["/bin/sh", "-c", _SCRIPT, PURPOSE, main, *programs]
    absences = _run_probe_on_nodes(context.options.srun, observation.unheard, probe_command, context.env)
    return observation._replace(launch_failures=tuple(absences))


def _run_probe_on_nodes(
    srun: str, nodes: Sequence[str], argv: Sequence[str], env: Mapping[str, str]
) -> List[LaunchFailure]:
    try:
        process = bare_step.start_command(srun, PURPOSE, nodes, argv, env)
    except OSError:
        return []
    try:
        printed = process.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        bare_step.end(process)
        printed = process.communicate()[0]
    return parse_first_absence_per_node(printed.decode(errors="replace"), nodes)


def parse_first_absence_per_node(output: str, nodes: Sequence[str]) -> List[LaunchFailure]:
    """Return for each node the first thing that it lacks: without the wrapper nothing else is tried."""
    first: Dict[str, LaunchFailure] = {}
    for line in output.splitlines():
        fields: Tuple[str, ...] = tuple(line.split(" ", 3))
        if len(fields) != 4 or fields[0] != _OUTPUT_PREFIX or fields[1] not in nodes or fields[2] not in _REASONS:
            continue  # the output of a Prolog or a library
        first.setdefault(fields[1], LaunchFailure(fields[1], fields[3], _REASONS[fields[2]]))
    return [first[node] for node in nodes if node in first]
