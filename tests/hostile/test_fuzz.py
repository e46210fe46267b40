"""A share of `make fuzz`, what it has found before, and that it finds what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import List

import pytest

from tests.hostile.fuzz import engine
from tests.hostile.fuzz.engine import MEGABYTES, Parser, Row, run
from tests.hostile.fuzz.table import PARSERS
from tests.support.wait import until

CHECKOUT = Path(__file__).parents[2]
SHARE = 150
CASES = sorted((Path(__file__).parent / "fuzz" / "cases").glob("*.json"))
BY_NAME = {parser.name: parser for parser in PARSERS}


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPK_FUZZ_DIR", str(tmp_path))


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_nothing_but_the_declared_errors(parser: Parser) -> None:
    for seed in parser.seeds:
        parser.call(seed)
    row = run(parser, SHARE, seed=1)
    assert row.inputs == SHARE and row.violations == {}


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_what_was_found_before(case: Path) -> None:
    """In a process of its own, with the limits: some of these took all memory, or had no end."""
    found = json.loads(case.read_text())
    parser, data = BY_NAME[found["parser"]], found["input"].encode("latin-1")
    row = run(Parser(parser.name, parser.call, parser.declared, lambda rng: data), 1)
    assert row.violations == {}, found["what"]


def _wrong(call: object, monkeypatch: pytest.MonkeyPatch, inputs: int = 20) -> Row:
    # Of processor time; a child of a process that has run many tests needs some of it before its first input.
    monkeypatch.setattr(engine, "PATIENCE", 5.0)
    made = lambda rng: rng.choice((b"a", b"bad"))  # noqa: E731
    return run(Parser("wrong", call, (ValueError,), made), inputs)  # type: ignore[arg-type]


def test_an_undeclared_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(data: bytes) -> None:
        if data == b"bad":
            raise KeyError("x")
        raise ValueError

    row = _wrong(call, monkeypatch)
    assert list(row.violations.values()) == [b"bad"] and row.declared["ValueError"] and row.inputs == 20


def test_too_much_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the limit of the address space, or where that had room left from before, by the peak."""
    [found] = _wrong(lambda data: bytearray((MEGABYTES + 80) << 20), monkeypatch).violations
    assert "MemoryError" in found or found == f"more than {MEGABYTES} MB"


def test_the_makers_memory_is_not_the_parsers() -> None:
    made = lambda rng: (b"x" * ((MEGABYTES + 20) << 20))[:9]  # noqa: E731
    row = run(Parser("small", lambda data: None, (), made), 3)
    assert row.inputs == 3 and row.violations == {} and row.peak_mb < MEGABYTES


@pytest.mark.full
def test_no_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(data: bytes) -> None:
        while True:
            pass

    row = _wrong(slow, monkeypatch, 1)
    assert list(row.violations) == ["no end after 5 s"] and row.inputs == 1


def test_too_much_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SECONDS", -1.0)
    row = run(Parser("slow", lambda data: None, (), lambda rng: b"a"), 3)
    assert list(row.violations) == ["more than -1 s of processor time"] and row.inputs == 3


def test_a_crash_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    row = _wrong(lambda data: os.kill(os.getpid(), signal.SIGKILL), monkeypatch, 3)
    assert "the process ended with -9" in row.violations and row.inputs == 3


def children(pid: int) -> List[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@pytest.mark.full
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process_and_no_file(ending: signal.Signals) -> None:
    """Of one that was killed the next run takes the files away."""
    words = [sys.executable, "-m", "tests.hostile.fuzz", "--workers", "1"]
    begun = [*words, "--only", "flush: outcomes", "--count", "100000000"]
    environment = {name: value for name, value in os.environ.items() if name != "HPK_FUZZ_DIR"}
    program = subprocess.Popen(begun, cwd=CHECKOUT, env=environment, stdout=subprocess.DEVNULL)

    def mine() -> List[Path]:
        return list(Path("/dev/shm").glob(f"hpk-fuzz-{program.pid}-*"))

    def below() -> List[int]:
        """A worker, and what runs the parser for it."""
        found = children(program.pid)
        return found + [child for worker in found for child in children(worker)]

    until(lambda: len(below()) >= 2)
    processes = below()
    assert mine()
    program.send_signal(ending)
    program.wait(60)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in processes))
    if ending is signal.SIGKILL:
        subprocess.run(
            [*words, "--only", "no such parser"], cwd=CHECKOUT, env=environment, stdout=subprocess.DEVNULL, timeout=120
        )
    assert mine() == []


def test_an_input_can_be_made_again() -> None:
    for parser in PARSERS:
        assert parser.make(Random("x")) == parser.make(Random("x"))
        assert len({parser.make(Random(str(number))) for number in range(50)}) > 10, "they differ"


def test_each_kind_of_what_others_write_is_there() -> None:
    names = " ".join(BY_NAME)
    for word in (
        "MANIFEST",
        "RUN.json",
        "LATEST",
        "index",
        "shard",
        "control page",
        "report",
        "names",
        "ledger",
        "exit",
        "records",
        "host lists",
        "mount report",
        "diagnose",
        "diff",
        "known_hosts",
        "ssm",
        "pickle",
        "zip",
        "safetensors",
        "lines",
        "messages",
        "YAML",
        "trees",
        "rows of time",
        "sizes by day",
        "alerts",
        "signs",
        "JSON",
    ):
        assert re.search(re.escape(word), names), word
