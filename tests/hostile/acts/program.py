"""`python -m tests.hostile.acts.program --acts 1000 --seed 1 --rows FILE`: goes on behind the rows that are there."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any, Dict, Iterator, List

import hyperpod_kit
from hyperpod_kit.cli.main import run_command_line as run_command
from hyperpod_kit.storage.preload import run as preloading
from hyperpod_kit.storage.usage import walk as walking
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.owner import OwnerLimits
from tests.hostile.acts.commands import ATTACKED, Attacked
from tests.hostile.acts.deeds import DEEDS, FUSE, ONCE
from tests.hostile.acts.ground import HOSTILE, Ground, ground
from tests.hostile.users import VICTIM
from tests.support.wait import Deadline

DEADLINE = 120.0
"""Seconds for a command, on a busy machine; the kit's own patience is made short."""
MNT_FORCE, MNT_DETACH = 1, 2
"""Flags of umount2."""
QUICK = OwnerLimits(silence=3.0, longest=30.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=Path, required=True)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text().splitlines()] if args.rows.exists() else []
    done = sum(row["seed"] == args.seed for row in rows)
    bad = sum(bool(row["violations"]) for row in rows)
    all_imported()
    with ground() as here, open(args.rows, "a", buffering=1) as out:
        for number in range(done, args.acts):
            row = act(here, args.seed, number)
            out.write(json.dumps(row) + "\n")
            bad += bool(row["violations"])
            if row["violations"]:
                print(json.dumps(row), flush=True)
    print(f"{args.acts} acts, {bad} with violations")
    return 1 if bad else 0


def all_imported() -> None:
    """What a child needs that has become a user: where root's home has the interpreter, it cannot import any more."""
    warnings.simplefilter("ignore")
    for module in pkgutil.walk_packages(hyperpod_kit.__path__, "hyperpod_kit."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)


def act(here: Ground, seed: int, number: int) -> Dict[str, Any]:
    """One command, while hostile users act; what was wrong is in `violations`."""
    rng = Random(f"{seed}/{number}")
    name = sorted(ATTACKED)[number % len(ATTACKED)]
    entry = ATTACKED[name]
    hostile = rng.choice(HOSTILE)
    runner = VICTIM if entry.by == "user" else 0
    mine, place = here.fresh(hostile, number), here.runner_place(runner, number)
    before = here.fingerprint()
    chosen = rng.sample(sorted(DEEDS), rng.randint(1, 3))
    if entry.waits and rng.random() < 0.3:
        chosen.append(FUSE)
    words = _words(here, entry, rng, mine, place, hostile)
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        for deed in chosen:
            stack.enter_context(_deed(deed, here, mine, hostile, rng))
        code, printed = _run(words, runner, place)
        seconds = time.monotonic() - begun
    violations = [] if code is not None else [f"no end after {DEADLINE:.0f} s"]
    if "a defect of hyperpod-kit" in printed or "Traceback (most recent call last)" in printed:
        violations.append("it ended with an error that it does not declare")
    after = here.fingerprint()
    violations += [
        f"{path}: {before.get(path)} -> {after.get(path)}"
        for path in sorted(set(before) | set(after))
        if before.get(path) != after.get(path)
    ]
    violations += [f"{path} has the canary" for path in here.leaks()]
    if runner == 0:
        # What is shown to root alone is left out: a message may quote the file that root has named.
        made = (path for path in here.brought(place) if path != str(place / "printed"))
        violations += [f"{path} has what its owner could not read" for path in made]
    _away(mine, place)
    shown = printed[-1500:] if violations else printed[-200:]
    return {
        "seed": seed,
        "number": number,
        "command": name,
        "words": words,
        "as": runner,
        "deeds": chosen,
        "code": code,
        "seconds": round(seconds, 2),
        "violations": violations,
        "printed": shown,
    }


def _words(here: Ground, entry: Attacked, rng: Random, mine: Path, place: Path, hostile: int) -> List[str]:
    line = rng.choice([entry.words, *entry.alternatives])
    places = {
        "mine": mine,
        "out": place / "out",
        "own": place,
        "fsx": here.fsx,
        "archive": here.archive,
        "attempt": here.names[0],
        "request": here.request(hostile, mine) if "{request}" in line else "",
    }
    return [word.format(**places) for word in line.split()]


def _run(words: List[str], uid: int, place: Path) -> tuple[int | None, str]:
    """(exit code, what it printed); None where it had to be ended."""
    said = place / "printed"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.environ.update(HOME=str(place), AWS_EC2_METADATA_DISABLED="true", AWS_DEFAULT_REGION="us-east-1")
            os.chdir(place)
            if uid:
                owner.become_user_permanently(uid)
                os.environ["HOME"] = str(place)
            _short_patience()
            code = run_command(words)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    ended = _wait(pid)
    return ended, said.read_text(errors="replace") if said.exists() else ""


def _short_patience() -> None:
    for function in (
        owner.run_as_owner_in_child_if_root,
        owner.uid_to_act_as_if_root,
        owner.run_as_user_in_child,
        owner.run_as_user_with_reports,
    ):
        function.__defaults__ = (QUICK,)
    preloading.LFS = QUICK
    walking.HANG_SECONDS = 3.0


def _wait(pid: int) -> int | None:
    deadline = Deadline(DEADLINE)
    while not deadline.has_passed():
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return None


@contextlib.contextmanager
def _deed(name: str, here: Ground, mine: Path, uid: int, rng: Random) -> Iterator[None]:
    if name == FUSE:
        with _silent(here, mine, uid, rng):
            yield
        return
    seed = rng.random()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setsid()
            quiet = os.open("/dev/null", os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            owner.become_user_permanently(uid)
            DEEDS[name](mine, here.fsx, Random(seed))
        os._exit(0)
    if name in ONCE:
        os.waitpid(pid, 0)
    try:
        yield
    finally:
        if name not in ONCE:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def _silent(here: Ground, mine: Path, uid: int, rng: Random) -> Iterator[None]:
    """A mount of theirs that answers nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    made = [mine / path.relative_to(here.pattern) for path in sorted(here.pattern.rglob("*"))]
    where = rng.choice([mine, *(path for path in made if path.exists() and not path.is_symlink())])
    channel = os.open("/dev/fuse", os.O_RDWR)
    kind = 40000 if where.is_dir() else 100000
    words = f"fd={channel},rootmode={kind},user_id={uid},group_id={uid},allow_other"
    mounted = libc.mount(b"evil", str(where).encode(), b"fuse.evil", 6, words.encode()) == 0
    try:
        yield
    finally:
        os.close(channel)
        if mounted:
            # Forced: that ends the connection, which whoever was forked meanwhile still has open, and with it the wait
            # of all who hang in the mount and could not be ended by a signal.
            libc.umount2(str(where).encode(), MNT_FORCE | MNT_DETACH)


def _away(mine: Path, place: Path) -> None:
    for folder in (mine, place):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # deeper than Python goes
            subprocess.run(["rm", "-rf", str(folder)], check=False)


if __name__ == "__main__":
    sys.exit(main())
