"""Strangers against `job run`'s lifelines: they take no descriptor that it needs, keep it from nothing, say nothing."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from typing import Dict, List

import pytest

from hyperpod_kit.environment import HPK_ATTEMPT_KEY, HPK_LIFELINE
from hyperpod_kit.job.step import lifeline
from hyperpod_kit.job.step.lifeline import BYE, LOST, STORAGE, Lifeline, Lifelines
from tests.hostile.network import Between, ended, flipped, resident, strangers
from tests.support.wait import until

SUPERVISING = """
import json, resource, subprocess, sys, time
from hyperpod_kit.job.step.lifeline import Lifelines
from hyperpod_kit.job.base.signals import Signals
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
lines = Lifelines("127.0.0.1")
print(json.dumps(lines.environment), flush=True)
with Signals() as signals:
    sys.stdin.readline()
    turns, end = 0, time.monotonic() + 2.0
    while time.monotonic() < end:
        signals.wait(min(5.0, end - time.monotonic(), lines.seconds_until_due or 5.0), lines.files)
        lines.receive_and_list_cut_off_nodes()
        turns += 1
    started = subprocess.run(["true"]).returncode == 0
    while not lines.status_by_node:
        signals.wait(min(5.0, lines.seconds_until_due or 5.0), lines.files)
        lines.receive_and_list_cut_off_nodes()
    print(json.dumps([turns, started, lines.status_by_node]), flush=True)
"""


class Here:
    """`job run`'s side in this process."""

    def __init__(self) -> None:
        self.lines = Lifelines("127.0.0.1")
        host, port, _ = self.lines.environment[HPK_LIFELINE].split(":")
        self.address = (host, int(port))

    def turn(self) -> List[str]:
        select.select(self.lines.files, [], [], min(0.3, self.lines.seconds_until_due or 0.3))
        return self.lines.receive_and_list_cut_off_nodes()

    def by_way_of(self, port: int) -> Dict[str, str]:
        return {**self.lines.environment, HPK_LIFELINE: f"127.0.0.1:{port}:x"}

    def works(self, name: str = "n9") -> None:
        Lifeline(self.lines.environment, name).end(BYE)
        until(lambda: (self.turn(), self.lines.status_by_node.get(name) == BYE)[1])


def test_idle_strangers_take_no_descriptor_that_job_run_needs_and_it_does_not_spin() -> None:
    job = subprocess.Popen(
        [sys.executable, "-c", SUPERVISING], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert job.stdin and job.stdout
        environment = json.loads(job.stdout.readline())
        with strangers(("127.0.0.1", int(environment[HPK_LIFELINE].split(":")[1])), 300):
            job.stdin.write("begin\n")
            job.stdin.flush()
            Lifeline(environment, "n1").end(LOST)
            turns, started, words = json.loads(job.stdout.readline())
        assert turns < 100 and started and words == {"n1": LOST}
    finally:
        job.kill()
        job.communicate(timeout=60)


def test_who_does_not_say_who_he_is_is_gone_after_his_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "GREET", 0.5)
    here = Here()
    with strangers(here.address, 50, b"x") as socks:
        until(lambda: (here.turn(), all(ended(sock, 0.001) for sock in socks))[1])
    here.works()


def test_a_line_without_an_end_is_not_kept() -> None:
    here, before = Here(), resident()
    with strangers(here.address, 1) as (sock,):
        sock.setblocking(False)
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 200 << 20:
                try:
                    sent += sock.send(b"x" * (1 << 20))
                except BlockingIOError:
                    here.turn()
    assert resident() - before < 32 << 20
    here.works()


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60_000,
        b"",
        b"null",
        b"\xff\x00",
        b'{"nonce":["a"],"node":"n1","proof":""}',
        b'{"nonce":"a","node":{}}',
        b'{"nonce":"a","node":"n1","proof":1e999}',
        b'{"nonce":"\\ud800","node":"\\udfff","proof":"' + b"0" * 64 + b'"}',
        b"9" * 60_000,
    ],
)
def test_odd_greetings_end_only_their_own_connection(line: bytes) -> None:
    here = Here()
    with strangers(here.address, 1, line + b"\n") as (sock,):
        until(lambda: (here.turn(), ended(sock, 0.01))[1])
    here.works("n1")
    assert here.lines.status_by_node == {"n1": BYE} and not here.lines.news()


def test_the_key_does_not_pass_by_and_a_recorded_greeting_counts_once() -> None:
    here = Here()
    way = Between(here.address)
    line = Lifeline(here.by_way_of(way.port), "n1")
    line.say(STORAGE)
    until(lambda: (here.turn(), here.lines.without_storage)[1])
    key = here.lines.environment[HPK_ATTEMPT_KEY].encode()
    assert way.up and not [said for said in way.up if key in said]
    with strangers(here.address, 1, b"".join(way.up)) as (sock,):
        until(lambda: (here.turn(), ended(sock, 0.01))[1])
    assert here.turn() == [] and here.lines.status_by_node == {"n1": STORAGE}
    line.end(BYE)
    until(lambda: (here.turn(), here.lines.status_by_node == {"n1": BYE})[1])
    with strangers(here.address, 1, b"".join(way.up)) as (sock,):
        until(lambda: (here.turn(), ended(sock, 0.01))[1])
    assert here.lines.status_by_node == {"n1": BYE}
    way.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda number, line: flipped(line, 70) if number == 1 else line,
        lambda number, line: b"lost\n" if number == 1 else line,
        lambda number, line: line[:65] + b"lost\n" if number == 1 else line,
        lambda number, line: line.replace(b"n1", b"n2"),
    ],
    ids=["flipped", "without its proof", "another word", "another node"],
)
def test_a_word_that_was_changed_on_its_way_is_no_word(change: object) -> None:
    here = Here()
    way = Between(here.address, change)  # type: ignore[arg-type]
    line = Lifeline(here.by_way_of(way.port), "n1")
    line.end(STORAGE)
    line = Lifeline(here.lines.environment, "n3")
    line.end(BYE)
    until(lambda: (here.turn(), "n3" in here.lines.status_by_node)[1])
    until(lambda: len(way.up) == 2)
    for _ in range(3):
        here.turn()
    assert here.lines.without_storage == [] and "n2" not in here.lines.status_by_node
    way.close()


def test_job_run_is_heard_at_its_address_and_at_no_other() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", Here().address[1]), timeout=60)
