"""Runs one parser on many inputs in a process of its own, and watches it from outside.

An input is named by the seed and its number, so a run can be repeated. Violations: an undeclared exception, more than
SECONDS of processor time, more than MEGABYTES of memory, a process that dies or does not come back.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import resource
import signal
import struct
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from random import Random
from typing import Any, Callable, Dict, List, Tuple, Type

from hyperpod_kit.system.process import make_parent_death_hook

MEGABYTES = 256
SECONDS = 2.0
PATIENCE = 20.0
"""Seconds of processor time for one input, after which the process is ended."""

STUCK = 200.0
"""The same on the clock: for an input that waits."""

LARGEST = 8 << 20
"""Bytes of an input: what ssh lets through."""

_ROOM = 16 << 20
_HEAD = struct.Struct("<QQ")


@dataclass(frozen=True)
class Parser:
    """`call` gets an input and may raise `declared`. `make`: an input by this generator. `seeds`: real ones, which must
    all be accepted."""

    name: str
    call: Callable[[bytes], object]
    declared: Tuple[Type[BaseException], ...]
    make: Callable[[Random], bytes]
    seeds: Tuple[bytes, ...] = ()


@dataclass
class Row:
    """How a parser came out. `violations`: what was wrong -> the shortest input that shows it."""

    name: str
    inputs: int = 0
    seconds: float = 0.0
    accepted: int = 0
    declared: Dict[str, int] = field(default_factory=dict)
    slowest: float = 0.0
    peak_mb: float = 0.0
    violations: Dict[str, bytes] = field(default_factory=dict)


def run(parser: Parser, count: int, seed: int = 0, until: float = float("inf")) -> Row:
    """`until`: of the monotonic clock; what is not done by then is left out."""
    row = Row(parser.name)
    begin = time.monotonic()
    done = 0
    while done < count:
        before = done
        done = _batch(parser, row, seed, done, count, until)
        if done == before or time.monotonic() > until:
            break
    row.seconds = time.monotonic() - begin
    return row


def _batch(parser: Parser, row: Row, seed: int, first: int, count: int, until: float) -> int:
    """One process, until it is through or violates something that it does not survive; the number of the next input."""
    shared = mmap.mmap(-1, _ROOM)
    said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the child writes it, this process closes it
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            # Ended from outside, an input that hangs would leave the others' counts unsaid.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            make_parent_death_hook(parent)()
            found = _child(parser, shared, seed, first, count, until)
            json.dump(found, said)
            said.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    killed = _watch(pid, shared)
    _, status = os.waitpid(pid, 0)
    with said:
        said.seek(0)
        text = said.read()
    number, length = _HEAD.unpack_from(shared)
    if status == 0 and text:
        found = json.loads(text)
        row.inputs += found["inputs"]
        row.accepted += found["accepted"]
        for name, times in found["declared"].items():
            row.declared[name] = row.declared.get(name, 0) + times
        row.slowest = max(row.slowest, found["slowest"])
        row.peak_mb = max(row.peak_mb, found["peak_mb"])
        for what, data in found["violations"].items():
            _note(row, what, bytes.fromhex(data))
        return int(found["next"])
    row.inputs += number - first + 1
    what = f"no end after {PATIENCE:g} s" if killed else f"the process ended with {os.waitstatus_to_exitcode(status)}"
    _note(row, what, bytes(shared[_HEAD.size : _HEAD.size + length]))
    return number + 1


def _note(row: Row, what: str, data: bytes) -> None:
    if what not in row.violations or len(data) < len(row.violations[what]):
        row.violations[what] = data


def _watch(pid: int, shared: mmap.mmap) -> bool:
    """Wait for its end; True when it had to be ended: one input took PATIENCE of its processor time."""
    seen, at, since = -1, 0.0, time.monotonic()
    while True:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            return False
        number = _HEAD.unpack_from(shared)[0]
        spent = _processor_time(pid)
        if number != seen:
            seen, at, since = number, spent, time.monotonic()
        elif spent - at > PATIENCE or time.monotonic() - since > STUCK:
            os.kill(pid, signal.SIGKILL)
            return True
        time.sleep(0.02)


def _processor_time(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def _child(parser: Parser, shared: mmap.mmap, seed: int, first: int, count: int, until: float) -> Dict[str, Any]:
    for data in parser.seeds:
        with contextlib.suppress(*parser.declared):
            parser.call(data)  # what is imported and cached late is nobody's input's
    gc.collect()
    warnings.simplefilter("ignore")
    address_space = _status("VmSize") + ((MEGABYTES + 64) << 10)
    resource.setrlimit(resource.RLIMIT_AS, (address_space << 10, address_space << 10))
    _reset_peak()
    base = _status("VmHWM")
    declared: Dict[str, int] = {}
    violations: Dict[str, str] = {}
    accepted = inputs = 0
    slowest = peak = 0.0
    number = first
    while number < count and time.monotonic() < until:
        data = _made(parser, seed, number)
        shared[: _HEAD.size] = _HEAD.pack(number, len(data))
        shared[_HEAD.size : _HEAD.size + len(data)] = data
        what = ""
        begin = time.process_time()
        try:
            parser.call(data)
            accepted += 1
        except parser.declared as err:
            name = type(err).__name__
            declared[name] = declared.get(name, 0) + 1
            if not isinstance(str(err), str):
                what = "its error has no words"
        except BaseException as err:
            last = traceback.extract_tb(err.__traceback__)[-1]
            what = f"{type(err).__name__} in {os.path.basename(last.filename)}:{last.name}: {str(err)[:80]!r}"
        spent = time.process_time() - begin
        slowest = max(slowest, spent)
        if not what and spent > SECONDS:
            what = f"more than {SECONDS:g} s of processor time"
        grown = (_highest() - base) / 1024
        if grown > peak:
            peak = grown
            if not what and peak > MEGABYTES:
                what = f"more than {MEGABYTES} MB"
        if what and (what not in violations or 2 * len(data) < len(violations[what])):
            violations[what] = data.hex()
        number += 1
        inputs += 1
        if peak > MEGABYTES:
            break  # a fresh process measures the next one
    return {
        "inputs": inputs,
        "accepted": accepted,
        "declared": declared,
        "violations": violations,
        "slowest": slowest,
        "peak_mb": max(0.0, peak),
        "next": number,
    }


def _made(parser: Parser, seed: int, number: int) -> bytes:
    """One input. What its maker takes of memory, before it is cut down to an input, is not the parser's."""
    highest = _highest()
    try:
        data = parser.make(Random(f"{parser.name}/{seed}/{number}"))[:LARGEST]
    except MemoryError:  # under the parser's limit
        data = b""
    if _highest() > highest:
        _reset_peak()
    return data


def _highest() -> int:
    """KiB that this process had at most, since the peak was reset."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status(key: str) -> int:
    """KiB of this process, as the kernel says."""
    with open("/proc/self/status") as file:
        found = next(line for line in file if line.startswith(key + ":"))
    return int(found.split()[1])


def _reset_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def lines(rows: List[Row]) -> List[str]:
    """The table for people."""
    heads = ("parser", "inputs", "seconds", "accepted", "declared errors", "slowest", "peak", "violations")
    cells = [heads] + [
        (
            row.name,
            f"{row.inputs:,}",
            f"{row.seconds:.0f}",
            f"{row.accepted:,}",
            ", ".join(f"{name} {times:,}" for name, times in sorted(row.declared.items())) or "-",
            f"{row.slowest:.2f} s",
            f"{row.peak_mb:.0f} MB",
            str(len(row.violations)),
        )
        for row in rows
    ]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]
