"""Ports that tests give to programs, and that no test gives away a port which it has let go of."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from tests.support import ports
from tests.support.syntax import nodes, tree_of

ROOT = Path(__file__).resolve().parents[2]
OTHER_PROCESS = """
import sys
from tests.support import ports
ports._BLOCKS = (int(sys.argv[1]),)
print(ports.free_port(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own_block(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The first port of a block that this process has just reserved, has given no port of, and finds free."""
    monkeypatch.setattr(ports, "_reservations", [])
    # Connections of a program that has ended, as its block's reservation has, keep their ports for a minute.
    block = ports._reserve_block()
    while not ports._are_free(block):
        block = ports._reserve_block()
    monkeypatch.setattr(ports, "_unused", block)
    yield block[0]
    for reservation in ports._reservations:
        reservation.close()


def test_no_port_is_given_twice_and_all_lie_below_those_of_whoever_connects(own_block: int) -> None:
    given = [ports.free_port() for _ in range(3 * ports._PORTS_OF_BLOCK)]
    assert len(set(given)) == len(given)
    assert max(given) < 32768


def test_ports_in_a_row_do_not_overlap(own_block: int) -> None:
    rows = [ports.free_ports(20) for _ in range(5)]
    given = [port for first in rows for port in range(first, first + 20)]
    assert len(set(given)) == 100


@pytest.mark.parametrize(
    "family, address", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")]
)
def test_a_port_that_somebody_has_bound_is_passed_over(
    own_block: int, family: socket.AddressFamily, address: str
) -> None:
    with socket.socket(family) as bound:
        bound.bind((address, own_block))
        assert ports.free_port() == own_block + 1


def test_a_block_is_reserved_while_its_process_runs(own_block: int) -> None:
    command = [sys.executable, "-c", OTHER_PROCESS, str(own_block)]
    other = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert "other tests have all blocks" in other.stderr
    for reservation in ports._reservations:
        reservation.close()
    other = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert other.stdout.split() == [str(own_block)], other.stderr


def test_a_fork_has_a_block_of_its_own(own_block: int) -> None:
    reading, writing = socket.socketpair()
    if (child := os.fork()) == 0:
        writing.sendall(str(ports.free_port()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    with reading, writing:
        assert int(reading.recv(16)) not in range(own_block, own_block + ports._PORTS_OF_BLOCK)


def test_no_test_gives_away_a_port_that_it_has_let_go_of() -> None:
    """A `with` around a socket in which only its number is taken: behind it anybody may have the port."""
    trees = [
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "rehearsal").rglob("*.py"),
        *(ROOT / "lab/lab_tests").rglob("*.py"),
    ]
    places = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in trees
        for node in nodes(tree_of(path))
        if isinstance(node, ast.With) and _only_takes_a_number(node)
    ]
    assert not places, f"use tests/support/ports.py instead: {places}"


def _only_takes_a_number(block: ast.With) -> bool:
    source = ast.unparse(block)
    takes = "getsockname()" in source and ", 0))" in source
    return takes and all(_is_of_the_socket_alone(statement) for statement in block.body)


def _is_of_the_socket_alone(statement: ast.stmt) -> bool:
    source = ast.unparse(statement)
    return "getsockname()" in source or ".bind(" in source or ".setsockopt(" in source
