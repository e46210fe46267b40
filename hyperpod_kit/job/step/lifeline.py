"""A connection from each node of a step to `job run`: it breaks when the node's part of the step is gone.

Slurm does not notice when slurmstepd dies: srun waits for ever. The kernel does, and closes the connection. It also
carries what a node can no longer write down: that the checkpoint root does not answer there; and the steps that its
ranks have reached (step_report.py).

A node proves in its first line that it has the attempt's key, and in each later one that it is the next of the same
sender (see untrusted/message_auth.py). The key is new in each attempt and is never sent, and no greeting counts twice:
so the node needs no question from `job run`, and a rank's start does not wait for one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import socket
import struct
import sys
import termios
import threading
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

from hyperpod_kit import descriptors
from hyperpod_kit.environment import HPK_ATTEMPT_KEY, HPK_LIFELINE, HPK_STEP_REPORTS
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.step import step_report
from hyperpod_kit.job.step.step_report import StepReport
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.untrusted import listening, message_auth, parse
from hyperpod_kit.untrusted.lines import Lines
from hyperpod_kit.untrusted.message_auth import Seal
from hyperpod_kit.untrusted.pending_connections import GREETING, ConnectionWithFirstLine, Unauthenticated
from hyperpod_kit.untrusted.text import clean_one_line

PROTOCOL = "hpk-lifeline/2"

BYE, LOST, STORAGE, SERVES = "bye", "lost", "storage", "serves"
"""Words of a node: its rank has ended, its slurmstepd is gone, the checkpoint root does not answer there; it does
again. The last two may come while the rank runs on."""

STEPS = "steps "
"""Begins a line with the reports of a node's ranks. `job run` of an older bundle would take such a line for a last
word: it is sent only to one that asks for it by HPK_STEP_REPORTS."""

_UNREAD = 4096
"""Bytes that may wait for `job run` to read them: a report beyond that is left out, so that a word still has room."""

UNNOTICED = 5.0
"""Seconds that Slurm gets to end a step of which a part has gone without a word."""

GREET = 10.0
"""Seconds within which a new connection has to send its greeting."""

_EACH = 0.25
"""Seconds between two looks at connections without a greeting, and at nodes that report steps: they must not keep
`job run` busy."""

_IDLE = 120
"""Seconds of silence after which the kernel asks whether the other side is there: firewalls forget idle connections."""


def shortage(nodes: int) -> str:
    """Return the warning that this process may not have a descriptor for a line to each of so many nodes, or ""."""
    needed_descriptors, here = 2 * nodes + 100, descriptors.soft_limit()
    if here >= needed_descriptors:
        return ""
    return (
        f"{here} descriptors are allowed, but {nodes} nodes need {needed_descriptors}: some nodes get no lifeline, so "
        "`job run` does not notice a dead slurmstepd there; raise the hard limit (LimitNOFILE= in slurmd's unit)"
    )


class _NodeLine(NamedTuple):
    """A node's line. `statuses`: its last word, if there was any; `launch`: that of its ranks, counted here."""

    name: str
    lines: Lines
    seal: Seal
    statuses: List[str]
    launch: int


class Lifelines:
    """The side of `job run`, which listens during one attempt. `address`: this host's, as the other `nodes` (addresses)
    know it.

    At most half of this process's descriptors are given to nodes and strangers (see `shortage`); what is beyond that
    stays without a line, like a node that cannot reach us.
    """

    def __init__(self, address: str, nodes: Sequence[str] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_hex(16)
        self._name = secrets.token_hex(4)
        self._strangers: Optional[Unauthenticated] = None
        self._strangers_polled_at = -_EACH
        self._lines: Dict[socket.socket, _NodeLine] = {}
        self._greetings: Set[str] = set()
        self.greeted: Set[str] = set()
        """Nodes of which a rank's wrapper has called, in this launch."""
        self._cut_off_since: Dict[str, float] = {}
        self._room = max(1, descriptors.soft_limit() // 2)
        self._news: List[str] = []
        self._older_nodes: Set[str] = set()
        self.status_by_node: Dict[str, str] = {}
        self.reports: Dict[int, StepReport] = {}
        """The newest report of each rank of this launch that reports steps."""
        self._reported = -_EACH
        self.launch = 1
        """Counts how often the ranks of the attempt were started: HyperPod may do so under one srun."""
        self._ahead = 0  # launches that nodes have shown by coming back, and that HyperPod has not spoken of yet
        self.environment = {HPK_LIFELINE: "", HPK_ATTEMPT_KEY: self._key, HPK_STEP_REPORTS: self._name}
        """The variables that the attempt's ranks must have."""
        if address:
            self._listen_and_set_environment_or_note_failure(address, [node for node in nodes if node != address])

    def _listen_and_set_environment_or_note_failure(self, address: str, peers: Sequence[str]) -> None:
        reachable_addresses = listening.addresses_reachable_from_peers(address, peers)
        try:
            try:
                listeners, port = listening.listen_on_local_addresses(reachable_addresses)
                address = str(listeners[0].getsockname()[0])
            except listening.NoAddress:
                listeners, port = listening.listen_on_local_addresses([listening.ANYWHERE])
                self._news.append(
                    f"{address} is not an address of this host: `job run` listens for the nodes' lifelines on all "
                    "interfaces"
                )
        except OSError as err:
            self._news.append(f"the nodes have no lifeline: {err.strerror or err}")
            return
        self._strangers = Unauthenticated(listeners, most=max(64, 2 * len(peers) + 2), seconds=GREET, clock=self._clock)
        self.environment[HPK_LIFELINE] = f"{address}:{port}:{self._name}"

    @property
    def files(self) -> List[int]:
        """Descriptors to wait for."""
        now = self._clock()
        node_descriptors: List[int] = []
        if now >= self._reported + _EACH:
            node_descriptors = [sock.fileno() for sock in self._lines]
        if self._strangers is None or now < self._strangers_polled_at + _EACH:
            return node_descriptors
        room = len(self._lines) + len(self._strangers) < self._room
        return [*node_descriptors, *(sock.fileno() for sock in self._strangers.sockets_to_poll(room))]

    @property
    def seconds_until_due(self) -> Optional[float]:
        """Seconds until another node may count as cut off without anything being received; None: never."""
        now = self._clock()
        delays = [since + UNNOTICED - now for since in self._cut_off_since.values()]
        if now < self._reported + _EACH:
            delays.append(self._reported + _EACH - now)
        if self._strangers is not None:
            strangers_due = self._strangers.seconds_until_expiry_or_resume
            if strangers_due is not None:
                delays.append(strangers_due)
            if now < self._strangers_polled_at + _EACH:
                delays.append(self._strangers_polled_at + _EACH - now)
        if not delays:
            return None
        return max(0.05, min(delays))

    def receive_and_list_cut_off_nodes(self) -> List[str]:
        """Read what the nodes have sent, and return those whose part of the step is gone although srun runs on."""
        if self._strangers is not None:
            guests = self._strangers.accept_expire_and_collect_first_lines(self._room - len(self._lines))
            if guests or self._strangers:
                self._strangers_polled_at = self._clock()
            for guest in guests:
                self._admit_authenticated_or_close(guest)
        for sock in list(self._lines):
            self._read(sock)
        now = self._clock()
        return sorted(name for name, since in self._cut_off_since.items() if now - since >= UNNOTICED)

    def news(self) -> List[str]:
        """Return the messages for the user that no earlier call has returned."""
        news, self._news = self._news, []
        return news

    @property
    def without_storage(self) -> List[str]:
        """The nodes that have reported that the checkpoint root does not answer."""
        return sorted(name for name, word in self.status_by_node.items() if word == STORAGE)

    def close(self) -> None:
        """Stop listening and close all connections."""
        if self._strangers is not None:
            self._strangers.close()
        for sock in self._lines:
            sock.close()
        self._lines.clear()

    def _admit_authenticated_or_close(self, guest: ConnectionWithFirstLine) -> None:
        """Keep the connection as a node's line where it has proved that it has the key; close it otherwise."""
        node = None
        with contextlib.suppress(Exception):  # whatever a stranger sends ends nothing but its own connection
            node = self._authenticate_greeting(guest)
        if node is None:
            guest.sock.close()
        else:
            self._lines[guest.sock] = node

    def _authenticate_greeting(self, guest: ConnectionWithFirstLine) -> Optional[_NodeLine]:
        older = guest.line.decode("ascii", "replace").split(" ")
        if older[0] == self._name and len(older) == 2:
            self._note_node_of_older_release(clean_one_line(older[1], 64))
            return None
        greeting = parse.parse_json_object(guest.line, GREETING)
        nonce, name = greeting.get("nonce"), greeting.get("node")
        if not isinstance(nonce, str) or not isinstance(name, str) or nonce in self._greetings:
            return None
        key = bytes.fromhex(self._key)
        if not message_auth.matches(greeting.get("proof"), message_auth.proof(key, PROTOCOL, nonce, name)):
            return None
        self._greetings.add(nonce)
        has_line = any(line.name == name and line.launch == self.launch for line in self._lines.values())
        if has_line or name in self.status_by_node:
            self._begin_anew()
            self._ahead += 1
        self.greeted.add(name)
        return _NodeLine(name, guest.lines, Seal(message_auth.derive_key(key, PROTOCOL, nonce, name)), [], self.launch)

    def _begin_anew(self) -> None:
        self.launch += 1
        self._cut_off_since.clear()
        self.status_by_node.clear()
        self.reports.clear()
        self.greeted.clear()

    def note_announced_relaunch(self) -> None:
        """Begin a new launch, as HyperPod announces once that it has started the ranks again: nodes that are gone
        belong to the launch before. Where new ranks called before the announcement, the launch has begun already."""
        if self._ahead:
            self._ahead -= 1
        else:
            self._begin_anew()

    def _note_node_of_older_release(self, name: str) -> None:
        self.greeted.add(name)
        if len(self._older_nodes) < 64 and name not in self._older_nodes:
            self._older_nodes.add(name)
            self._news.append(
                f"{name} runs an older release of hyperpod-kit than `job run` and has no lifeline: `job run` does not "
                "notice a dead slurmstepd there; hyperpod-kit diff shows which bundle it has"
            )

    def _read(self, sock: socket.socket) -> None:
        node = self._lines[sock]
        with contextlib.suppress(Untrusted):
            while True:
                line = node.lines.receive_line_nowait()
                if line is None:
                    break
                word = node.seal.verify_next(line).decode("ascii", "replace")
                if word.startswith(STEPS):
                    self._take_reports(node, word[len(STEPS) :])
                    continue
                node.statuses[:] = [word]
                if node.statuses[0] in (STORAGE, SERVES) and node.launch == self.launch:
                    self.status_by_node[node.name] = node.statuses[0]
            if not node.lines.ended:
                return
        self._ended(node)
        del self._lines[sock]
        sock.close()

    def _take_reports(self, node: _NodeLine, text: str) -> None:
        self._reported = self._clock()
        if node.launch != self.launch:
            return
        with contextlib.suppress(ValueError):
            self.reports.update({report.rank: report for report in step_report.decoded(text, node.name)})

    def _ended(self, node: _NodeLine) -> None:
        """Record that a node's connection is closed: in order after a last word, broken without one."""
        if node.launch != self.launch:
            return
        word = ""
        if node.statuses and node.statuses[0] != SERVES:
            word = node.statuses[0]
        self.status_by_node[node.name] = word
        # Nothing reports on this node's ranks any more, also where some of them go on.
        for rank, report in self.reports.items():
            if report.node == node.name:
                self.reports[rank] = report._replace(phase=Phase.OVER)
        if word == LOST:
            self._cut_off_since[node.name] = self._clock() - UNNOTICED
        elif not word:
            self._cut_off_since.setdefault(node.name, self._clock())


class Lifeline:
    """A rank's side of the connection, one for each node. It does nothing where there is no listener, or where that
    cannot be reached."""

    def __init__(self, env: Mapping[str, str], node: str) -> None:
        self._socket: Optional[socket.socket] = None
        self._lock = threading.Lock()
        host, _, rest = env.get(HPK_LIFELINE, "").rpartition(":")[0].rpartition(":")
        if not host or env.get("SLURM_LOCALID", "0") != "0":
            return
        if not env.get(HPK_ATTEMPT_KEY):
            print(
                f"hyperpod-kit: `job run` is of an older release than {node}, which gets no lifeline: `job run` "
                "does not notice a dead slurmstepd there",
                file=sys.stderr,
            )
            return
        with contextlib.suppress(OSError, ValueError):
            key, nonce = bytes.fromhex(env[HPK_ATTEMPT_KEY]), message_auth.nonce()
            self._seal = Seal(message_auth.derive_key(key, PROTOCOL, nonce, node))
            self._socket = socket.create_connection((host, int(rest)), timeout=5.0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
            greeting = {
                "protocol": PROTOCOL,
                "nonce": nonce,
                "node": node,
                "proof": message_auth.proof(key, PROTOCOL, nonce, node),
            }
            self._socket.sendall(json.dumps(greeting).encode() + b"\n")

    def say(self, word: str) -> None:
        """Send a word to `job run`, where there is a connection."""
        if self._socket is not None:
            with contextlib.suppress(OSError), self._lock:
                self._socket.sendall(self._seal.seal_next(word.encode()) + b"\n")

    def report(self, reports: Sequence[StepReport]) -> bool:
        """Send what the node's ranks have reached; False where there is no line, or `job run` does not read now."""
        line = self._socket
        if line is None:
            return False
        with contextlib.suppress(OSError), self._lock:
            if _unread(line) > _UNREAD:
                return False
            line.sendall(self._seal.seal_next((STEPS + step_report.encoded(reports)).encode()) + b"\n")
            return True
        return False

    @property
    def connected(self) -> bool:
        """Whether this wrapper has the line of its node."""
        return self._socket is not None

    def end(self, word: str) -> None:
        """Send the last word and close the connection."""
        self.say(word)
        if self._socket is not None:
            self._socket.close()


def _unread(sock: socket.socket) -> int:
    """Return the bytes that were sent and that the other side's kernel has not taken. Raises OSError."""
    return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0])
