"""A fleet that is larger than this process's limit of descriptors: nobody is lost for it, and no rank stays outside.

What is limited runs in a process of its own with RLIMIT_NOFILE=256; the fleet is this process and one for the slurmds.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from hyperpod_kit.checkpoint.agent.wire import rpc
from hyperpod_kit.checkpoint.agent.wire.channel import Channel
from hyperpod_kit.descriptors import command_with_soft_limit, soft_limit
from hyperpod_kit.job.step.lifeline import BYE, Lifeline

ROOT = Path(__file__).resolve().parents[2]
MANY = 300

PRELUDE = """
import json, resource, sys
from hyperpod_kit import descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))

def say(value):
    print(json.dumps(value), flush=True)
"""

SLURMDS = """
import socket
listener = socket.create_server(("0.0.0.0", 0), backlog=4096)
print(listener.getsockname()[1], flush=True)
while True:
    listener.accept()[0].close()
"""


class Limited:
    """A program under the limit: it is asked by a line and answers with a line of JSON."""

    def __init__(self, program: str, *args: object, hard: str = "256") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE.format(hard=hard) + program, *map(str, args)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def complaint(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def ask(self, word: str) -> Any:
        self.tell(word)
        return self.hear()


@contextlib.contextmanager
def limited(program: str, *args: object, hard: str = "256") -> Iterator[Limited]:
    one = Limited(program, *args, hard=hard)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate(timeout=60)


@pytest.fixture
def slurmds() -> Iterator[int]:
    """The port at which every loopback address answers, as that many nodes' slurmds."""
    server = subprocess.Popen([sys.executable, "-c", SLURMDS], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.communicate(timeout=60)


WATCH = f"""
import os
from hyperpod_kit.job.step.watch import NodeWatch
addresses = {{f"n{{n}}": (f"127.1.{{n // 250}}.{{n % 250 + 1}}", int(sys.argv[1])) for n in range({MANY})}}
now, held = [0.0], []
watch = NodeWatch(addresses, clock=lambda: now[0])
with __import__("contextlib").suppress(OSError):
    while len(held) < int(sys.argv[2]):
        held.append(os.dup(0))
lost, unasked = [], 0
for look in range(4):
    now[0] += 100.0
    lost += watch.probe()
    unasked = max(unasked, len(watch.unasked))
say([lost, unasked, sorted(watch.doubted)])
"""


@pytest.mark.parametrize(
    ("held", "unasked"), [(0, 0), (240, 0), (1000, MANY)], ids=["all free", "few left", "none left"]
)
def test_no_live_node_is_lost_for_want_of_descriptors(slurmds: int, held: int, unasked: int) -> None:
    with limited(WATCH, slurmds, held) as looking:
        assert looking.hear() == [[], unasked, []]


LINES = """
import time
from hyperpod_kit.job.step.lifeline import Lifelines, shortage
from hyperpod_kit.job.base.signals import Signals
if sys.argv[1] == "raised":
    descriptors.raise_soft_limit_to_hard()
now = [0.0]
lines = Lifelines("127.0.0.1", clock=lambda: now[0])
say([lines.environment, shortage(300)])
with Signals() as signals:
    for command in sys.stdin:
        turns, cpu, until = 0, time.process_time(), len(lines._lines)
        wanted = min(300, lines._room) if command == "join\\n" else 0
        while len(lines._lines) != wanted:
            lines.receive_and_list_cut_off_nodes()
            signals.wait(lines.seconds_until_due or 5.0, lines.files)
            now[0] += 0.25
        ready = len(lines.files) > wanted
        now[0] += 100.0
        say([wanted, ready, lines.receive_and_list_cut_off_nodes(), sorted(lines.status_by_node.values())])
"""


@pytest.mark.parametrize(("limit", "hard", "held"), [("raised", "hard", MANY), ("as it is", "256", 128)])
def test_lifelines_of_more_nodes_than_descriptors(limit: str, hard: str, held: int) -> None:
    """The hard limit helps where it may; else some nodes have no line, which is said, and none counts as gone."""
    program = LINES
    if hard == "hard":
        hard = "resource.getrlimit(resource.RLIMIT_NOFILE)[1]"
    with limited(program, limit, hard=hard) as run:
        environment, said = run.hear()
        assert bool(said) == (held < MANY)
        nodes = [Lifeline(environment, f"n{number}") for number in range(MANY)]
        assert run.ask("join") == [held, held == MANY, [], []]
        for node in nodes:
            node.end(BYE)
        # Those that had to wait are taken in turn, and say what they have to say: that they have ended.
        answered = run.ask("leave")
        assert answered[:3] == [0, True, []]
        assert set(answered[3]) == {BYE}


FABRIC = """
from hyperpod_kit.checkpoint.agent.wire import rpc
from hyperpod_kit.errors import CheckpointError
import os, queue
if sys.argv[1] == "raised":
    descriptors.raise_soft_limit_to_hard()
gone = queue.SimpleQueue()
try:
    hub = rpc.Hub("token", lambda rank, message: gone.put((rank, message)), peers=int(sys.argv[2]),
                     addresses=["127.0.0.1"])
except CheckpointError as err:
    say(str(err))
    sys.exit()
held = []
if sys.argv[1] == "full":
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
say(hub.port)
sys.stdin.readline()
for descriptor in held:
    os.close(descriptor)
say(sorted(gone.get(timeout=60)[0] for _ in range(int(sys.argv[2]))))
"""


def peers(port: int, count: int) -> List[Channel]:
    joined = [rpc.connect_to_leader([("127.0.0.1", port)], "token", rank) for rank in range(1, count + 1)]
    assert all(joined)
    return [channel for channel in joined if channel is not None]


def test_all_ranks_find_rank_0_where_the_soft_limit_is_too_low() -> None:
    with limited(FABRIC, "raised", MANY - 1, hard="resource.getrlimit(resource.RLIMIT_NOFILE)[1]") as head:
        channels = peers(head.hear(), MANY - 1)
        for channel in channels:
            channel.send({"op": "done"})
        assert head.ask("heard") == list(range(1, MANY))


def test_too_few_descriptors_for_the_ranks_are_refused_in_words() -> None:
    with limited(FABRIC, "as it is", MANY - 1) as head:
        assert head.hear() == ("rank 0's agent needs 363 descriptors for 300 ranks, but its node allows 256")


def test_ranks_that_come_while_descriptors_are_out_are_let_in_later() -> None:
    with limited(FABRIC, "full", 20) as head, ThreadPoolExecutor(20) as pool:
        port = head.hear()
        joining = [pool.submit(rpc.connect_to_leader, [("127.0.0.1", port)], "token", rank) for rank in range(1, 21)]
        assert head.complaint() == "agents of other ranks wait: Too many open files\n"
        head.tell("descriptors are free again")
        for joined in joining:
            channel = joined.result(60)
            assert channel and channel.send({"op": "done"})
        assert head.hear() == list(range(1, 21))


def test_the_user_s_program_keeps_the_user_s_limit() -> None:
    program = (
        "import resource, subprocess, sys\n"
        "from hyperpod_kit import descriptors\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "theirs = descriptors.soft_limit()\n"
        "descriptors.raise_soft_limit_to_hard()\n"
        "assert descriptors.soft_limit() > 256\n"
        "subprocess.run(descriptors.command_with_soft_limit(theirs, ['sh', '-c', 'ulimit -Sn; echo $1', 'sh', "
        "'a b']))\n"
    )
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert said.stdout == "256\na b\n", said.stderr


def test_an_unchanged_limit_needs_no_shell() -> None:
    assert command_with_soft_limit(soft_limit(), ["srun", "true"]) == ["srun", "true"]
