"""Find out why no rank begins in a container: none ever will, or nodes lack the checkpoint root.

Where a mount is gone, pyxis cannot bind it, and no wrapper of ours begins that could report it: such a node is probed
by a step outside of containers.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import subprocess
from typing import Dict, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import GaveUp, UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.decide.outcome import Observation, Outcome
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.step import bare_step
from hyperpod_kit.job.step.container import TRIES, Container
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.job.step.storage import DEADLINE, Probe

VERB = "look"
UNBEGUN = (OutcomeKind.LAUNCH_FAILED, OutcomeKind.CRASH)
"""Ends of an attempt in which no rank may have begun."""
UNREACHABLE, SERVES = "away", "serves"
PATIENCE = 4 * DEADLINE
"""Seconds after which nodes that have not answered are passed over."""


class ContainerStarts:
    """Checks that the ranks' `container` comes up; None where they run in none, and there is nothing to check.

    It gives up a job whose ranks never begin: whatever is wrong with the image or its options, it stays wrong.
    """

    def __init__(self, container: Optional[Container], options: RunOptions, env: Mapping[str, str]) -> None:
        self._container = container
        self._options = options
        self._env = env
        self._failed = 0

    def add_silent_nodes_without_root(
        self, observation: Observation, nodes_heard_from: Sequence[str], used_nodes: Sequence[str]
    ) -> Observation:
        """Return the observation with the nodes on which the root does not answer, of the used ones that no wrapper has
        called from; unchanged where the end of the step has another explanation."""
        silent = [name for name in used_nodes if name not in nodes_heard_from]
        is_explained = (
            observation.code in (0, ExitCode.NO_PYTHON, ExitCode.NOT_MOUNTED)
            or observation.stop
            or observation.warned
            or observation.lost
            or observation.stalled
            or observation.nodes_without_root
        )
        if self._container is None or is_explained or not silent:
            return observation
        return observation._replace(nodes_without_root=self._query_nodes_without_root(silent))

    def find_failure(self, outcome: Outcome, has_wrapper_called: bool) -> Optional[GaveUp]:
        """Return the error of a container in which no rank ever begins; called once after each attempt.

        `has_wrapper_called`: a rank's wrapper has called `job run`.
        """
        if self._container is None or has_wrapper_called or outcome.kind not in UNBEGUN or outcome.first is not None:
            self._failed = 0
            return None
        self._failed += 1
        is_final = outcome.code in (ExitCode.NO_PYTHON, ExitCode.NOT_MOUNTED)
        if not is_final and self._failed < TRIES:
            return None
        return GaveUp(
            f"no rank has begun in the container: srun exited {outcome.code}",
            hint="see the messages of srun, pyxis and the container above; to try it by hand, with the same options: "
            "srun --container-image=… python3 --version",
        )

    def _query_nodes_without_root(self, nodes: Sequence[str]) -> Tuple[str, ...]:
        options = self._options
        places = [options.state]
        if is_path(options.root):
            places.append(options.root)
        try:
            process = bare_step.start_kit_program_on_nodes(options.srun, VERB, nodes, (VERB, *places), self._env)
        except OSError:
            return ()
        try:
            output = process.communicate(timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            bare_step.end(process)
            output = process.communicate()[0]
        root_state_by_node: Dict[str, str] = {}
        for fields in map(str.split, output.decode(errors="replace").splitlines()):
            if len(fields) == 2:
                root_state_by_node[fields[0]] = fields[1]
        return tuple(name for name in nodes if root_state_by_node.get(name) == UNREACHABLE)


def print_whether_root_serves_here(state_and_root: Sequence[str], env: Mapping[str, str]) -> int:
    """Print `<node> away` or `<node> serves`, as a task of the step that probes silent nodes; return 0. Raises
    UsageError."""
    if not state_and_root:
        raise UsageError("no directory given", hint=f"`job run` runs `job {VERB} STATE [ROOT]` itself")
    root = ""
    if len(state_and_root) > 1:
        root = state_and_root[1]
    root_state = UNREACHABLE
    if Probe(state_and_root[0], root).answers():
        root_state = SERVES
    print(env.get("SLURMD_NODENAME", ""), root_state, flush=True)
    return 0
