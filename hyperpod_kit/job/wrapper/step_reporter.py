"""The thread of a rank's wrapper that reports what its rank has reached to `job run`.

One wrapper of a node has the lifeline; the others send their reports to it, by a socket of the node whose name and
messages only processes of this attempt can make. A node sends at most one line a second, and less often where there are
many nodes, so that `job run` receives some hundred lines a second at most, however many ranks there are.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Callable, Dict, List, Mapping, Optional

from hyperpod_kit.environment import HPK_ATTEMPT_KEY, HPK_LIFELINE, HPK_STEP_REPORTS
from hyperpod_kit.job.step import step_report
from hyperpod_kit.job.step.lifeline import Lifeline
from hyperpod_kit.job.step.step_report import RankMeter, StepReport
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.progress import RankProgress
from hyperpod_kit.untrusted import message_auth

CHECK_INTERVAL = 0.5
"""Seconds between two looks at what the rank has written."""

LINES_A_SECOND = 200
"""Lines that `job run` is to receive from all nodes together, at most."""

_MOST_ELAPSED = 5.0
"""Seconds that one look counts for: a wrapper that was stopped (`scontrol suspend`) was stopped with its rank."""

_LARGEST = 1 << 10
_MAC = 64


def does_job_run_accept_reports(env: Mapping[str, str]) -> bool:
    """Return whether the `job run` of this very attempt takes step reports: one of another bundle may not know them."""
    name = env.get(HPK_LIFELINE, "").rpartition(":")[2]
    return bool(name and env.get(HPK_ATTEMPT_KEY)) and env.get(HPK_STEP_REPORTS) == name


def interval(nodes: int) -> float:
    """Return the seconds between two lines of one node, where there are so many."""
    return max(1.0, nodes / LINES_A_SECOND)


class NodeSocket:
    """Connects the wrappers of one attempt on one node: the one that has the lifeline receives, the others send."""

    def __init__(self, env: Mapping[str, str], node: str) -> None:
        self._node = node
        self._key = message_auth.derive_key(
            env[HPK_ATTEMPT_KEY].encode(), "hpk-steps", node, step_launch_id_with_srun_port(env)
        )
        self.address = f"\0hpk-steps-{message_auth.proof(self._key, 'address')[:32]}"
        self._socket: Optional[socket.socket] = None

    def receive(self) -> List[StepReport]:
        """Return the reports that the other wrappers have sent since the last call."""
        if self._socket is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                sock.bind(self.address)
            except OSError:  # the launch before still has it
                sock.close()
                return []
            self._socket = sock
        reports: List[StepReport] = []
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while True:
                data = self._socket.recv(_LARGEST, socket.MSG_DONTWAIT)
                with contextlib.suppress(ValueError):
                    reports += self._authenticate_and_parse(data)
        return reports

    def _authenticate_and_parse(self, data: bytes) -> List[StepReport]:
        """Return the reports of a message. Raises ValueError."""
        text = data[_MAC:].decode("ascii")
        if not message_auth.matches(data[:_MAC].decode("ascii"), message_auth.proof(self._key, text)):
            raise ValueError("a message from an unknown sender")
        return step_report.decoded(text, self._node)

    def send(self, report: StepReport) -> bool:
        """Send a report, and return whether it has arrived: the receiver may not have begun yet, or have ended."""
        text = step_report.encoded([report])
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            self._socket.sendto(
                (message_auth.proof(self._key, text) + text).encode(), socket.MSG_DONTWAIT, self.address
            )
            return True
        return False

    def close(self) -> None:
        """Close the socket, where it is open."""
        if self._socket is not None:
            self._socket.close()


class StepReporter:
    """Reports a rank's steps from its creation until `stop`; does nothing where `job run` does not accept reports.
    `line`: the wrapper's."""

    def __init__(
        self,
        progress: RankProgress,
        line: Lifeline,
        env: Mapping[str, str],
        *,
        rank: int,
        node: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._line, self._clock = progress, line, clock
        self._meter = RankMeter(rank, node)
        self._last_check = self._due = clock()
        self._interval = interval(_nodes(env))
        self._sent: Dict[int, StepReport] = {}
        self._report_by_rank: Dict[int, StepReport] = {}
        self._over = threading.Event()
        self.neighbours: Optional[NodeSocket] = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name="hpk-steps")
        if does_job_run_accept_reports(env):
            self.neighbours = NodeSocket(env, node)
            self._thread.start()

    def stop(self) -> None:
        """Report once more what the rank had reached, and that it has ended, and stop reporting."""
        if self.neighbours is None:
            return
        self._over.set()
        self._thread.join(2.0)
        if self._thread.is_alive():
            return
        self._due = self._clock()
        self._report_changes_if_due(self.neighbours, ended=True)
        self.neighbours.close()

    def _watch(self) -> None:
        assert self.neighbours is not None, "nobody hears"
        while not self._over.wait(CHECK_INTERVAL):
            self._report_changes_if_due(self.neighbours)

    def _report_changes_if_due(self, node_socket: NodeSocket, ended: bool = False) -> None:
        now = self._clock()
        report = self._meter.next_report(min(now - self._last_check, _MOST_ELAPSED), self._progress.state())
        self._last_check = now
        if report.phase is not Phase.START:
            if ended:
                report = report._replace(phase=Phase.OVER)
            self._report_by_rank[report.rank] = report
        if self._line.connected:
            self._report_by_rank.update({rank_report.rank: rank_report for rank_report in node_socket.receive()})
        changed = [
            rank_report for rank, rank_report in self._report_by_rank.items() if self._sent.get(rank) != rank_report
        ]
        if not changed or now < self._due:
            return
        if self._line.connected:
            is_sent = self._line.report(changed)
        else:
            is_sent = node_socket.send(changed[0])
        if is_sent:
            self._sent.update({rank_report.rank: rank_report for rank_report in changed})
            self._due = now + self._interval


def _nodes(env: Mapping[str, str]) -> int:
    for name in ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        if env.get(name, "").isdigit():
            return int(env[name])
    return 1
