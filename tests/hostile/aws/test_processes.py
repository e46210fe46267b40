"""Each command as a process of its own against an AWS that lies: the exit code, the time to the first word and to the
end, the memory, and that no word of it is a control character or calls the answer a defect of ours."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple, Union

import pytest

from tests.hostile.aws import objects
from tests.hostile.aws.service import AT_ONCE, SLOW, Liar
from tests.hostile.aws.test_answers import BELIEVED, COMMANDS, OF_LISTS, REPOSITORY
from tests.support import warm
from tests.support.wait import Deadline

PROGRAM = Path(sys.executable).with_name("hyperpod-kit")
IMPORTED = (
    "boto3",
    "botocore.auth",
    "hyperpod_kit.bundle.compare",
    "hyperpod_kit.cli.main",
    "hyperpod_kit.preflight.run.gather",
    "hyperpod_kit.remote.diagnosis.cluster_diagnosis",
    "hyperpod_kit.remote.live_cluster",
)
"""Most of what a command computes here is its imports, and all of these have the same."""
FIRST_WORD, END, MEMORY = 30.0, 120.0, 200
"""Seconds, seconds, MB: what a command may take."""
THROTTLED, END_OF_DIFF = "503html", 150.0
"""`diff` alone asks two services one after the other, each for 60 s and botocore's own tries of the last call."""
WAITED_FOR = (THROTTLED, *SLOW)
"""Modes that commands wait for: an answer that does not come, or a service that throttles and is asked again."""
AT_A_TIME = 4
"""Commands that run at once against a mode that answers; against one that they wait for, all of them do."""


class Ran(NamedTuple):
    """One command that has ended. `first`, `end`: seconds; `memory`: MB at the most; `late`: what came too late, on a
    machine as busy as this one was."""

    code: int
    said: str
    first: float
    end: float
    memory: float
    late: Tuple[str, ...]


@pytest.fixture
def liar() -> Iterator[Liar]:
    server = Liar()
    yield server
    server.close()


def surroundings(place: Path, liar: Liar) -> Dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "AWS_ENDPOINT_URL": liar.url,
        "AWS_ACCESS_KEY_ID": "t",
        "AWS_SECRET_ACCESS_KEY": "t",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def start(words: List[str], place: Path, liar: Liar) -> Union[subprocess.Popen[bytes], warm.Program]:
    """A command with its output and its errors in one pipe. Against an AWS that does not lie, as a user starts it."""
    if liar.mode != "good":
        return warm.Program([str(PROGRAM), *words], surroundings(place, liar), imported=IMPORTED, cwd=place, both=True)
    return subprocess.Popen(
        [str(PROGRAM), *words],
        cwd=place,
        env=surroundings(place, liar),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(words: List[str], place: Path, liar: Liar) -> Ran:
    begun = time.monotonic()
    longest = END_OF_DIFF if liar.mode == THROTTLED and words == ["diff"] else END
    deadlines = {"first word": Deadline(FIRST_WORD), "end": Deadline(longest)}
    late: List[str] = []
    process = start(words, place, liar)
    assert process.stdout is not None
    said, first, memory = b"", 0.0, 0.0
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while True:
            memory = max(memory, resident(process.pid))
            if time.monotonic() - begun > 3 * longest and deadlines["end"].has_passed():
                process.kill()
            if not waiting.select(0.1):
                continue
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                break
            if not first:
                first = time.monotonic() - begun
                late += ["first word"] if deadlines["first word"].has_passed() else []
            said += piece
    process.stdout.close()
    code = process.wait()
    end = time.monotonic() - begun
    late += ["end"] if deadlines["end"].has_passed() else []
    return Ran(code, said.decode("utf-8", "replace"), first, end, memory, tuple(late))


def resident(pid: int) -> float:
    """MB that a process has had at most, 0 of one that has ended. What wait4 says would be this process's own, from
    before the exec."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1000 if found else 0.0


def complaints(mode: str, name: str, ran: Ran) -> List[str]:
    """What is wrong with one run."""
    control = [char for char in ran.said if not char.isprintable() and char != "\n"]
    lists = mode not in ("good", *BELIEVED, *objects.MODES) and name in OF_LISTS
    wrong = {
        f"exit code {ran.code}": ran.code not in (0, 1, 3) or (lists and ran.code not in (1, 3)),
        f"control characters {control[:3]!r}": bool(control),
        "called a defect": "defect of hyperpod-kit" in ran.said or "Traceback" in ran.said,
        f"{len(ran.said)} characters": len(ran.said) > 100_000 and "--json" not in name,
        f"first word after {ran.first:.1f} s": "first word" in ran.late,
        f"end after {ran.end:.1f} s": "end" in ran.late,
        f"{ran.memory:.0f} MB": ran.memory > MEMORY,
    }
    return [f"{mode}: {name}: {what}: {ran.said[-300:]}" for what, is_so in wrong.items() if is_so]


@pytest.mark.full
@pytest.mark.parametrize("mode", ["good", *AT_ONCE, *objects.MODES, *SLOW])
def test_each_command_comes_to_an_end(mode: str, tmp_path: Path, liar: Liar) -> None:
    shutil.copy(REPOSITORY / "provisioning_parameters.example.json", tmp_path / "provisioning_parameters.json")
    liar.mode = mode
    with ThreadPoolExecutor(len(COMMANDS) if mode in WAITED_FOR else AT_A_TIME) as pool:
        found = dict(zip(COMMANDS, pool.map(lambda words: run(words, tmp_path, liar), COMMANDS.values())))
    worst = {what: max(getattr(ran, what) for ran in found.values()) for what in ("first", "end", "memory")}
    print(f"{mode}: {len(found)} runs, first word {worst['first']:.1f} s, end {worst['end']:.1f} s, ", end="")
    print(f"{worst['memory']:.0f} MB; exit codes {sorted(ran.code for ran in found.values())}")
    assert [line for name, ran in found.items() for line in complaints(mode, name, ran)] == []
