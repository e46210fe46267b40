"""What the timer starts: `python3 -I -S glance.py`. Most ticks find what the tick before has found; this answers that
question alone, for a fifth of the processor time of the whole check, and becomes that for everything else.

calm.py writes the note that it goes by, and only while every mount is `ok` and nothing is owed. The note holds until
somewhat later, so the whole check comes again by itself; until then nothing may differ: not the bundle, not the
kernel's lines of the mounts (a mount that is replaced has another number), not its packet filter, not one answer.

Imports nothing that is not compiled in, prober.py and ruleset.py, until it becomes the whole check.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import sys
import time

FORMAT = "hpk-calm/4"
WORKERS = 4
"""Processes that share the mounts. One that hangs holds up its worker's others, which the whole check then asks."""

MOST_SAVES, MOST_OF_ONE = 64, 16
"""Words of runs that are looked at: of the first release's, and of one user's now. Of more, the whole check hears when
it comes by itself."""

PATIENCE = 0.25
"""Seconds for all answers. Who has not answered then may still be in time, but that is for the whole check to judge."""


def calm(root: str) -> bool:
    """Whether nothing has changed since the note was written; False too when there is none.

    Raises OSError or ValueError for a note that cannot be read.
    """
    with open(root + "/run/hyperpod-kit/calm", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        head, *lines = stream.read().rstrip("\n").split("\n")
    form, written, until, slow, bundle, textfile, procs, marks, rules = head.split("\t")
    if form != FORMAT or not float(written) <= time.time() < float(until):
        return False
    if os.readlink(root + "/opt/hyperpod-kit/current") != bundle:
        return False
    if os.path.exists(root + "/run/hyperpod-kit/gate-closed.json"):
        return False
    if procs:
        with open(root + procs, "rb", buffering=0) as stream:
            if not stream.read(1):
                return False
    if rules:
        from hyperpod_kit.node import ruleset

        if ruleset.generation() != rules:
            return False
    if textfile and saves(root + "/dev/shm") != marks:
        return False
    listed = kernel_lines(root + "/proc/self/mountinfo")
    mounts = []
    for line in lines:
        path, place, kind, seen = line.split("\t")
        if listed.get(place, "") != seen.replace("\x1f", "\n"):
            return False
        mounts.append((root + path, kind))
    # What others read is as fresh as this look. The metrics lie where another may be at home, whose directory may hang.
    if not all_answer(mounts, float(slow), root + textfile if textfile else ""):
        return False
    os.utime(root + "/run/hyperpod-kit/health.json")
    return True


def saves(folder: str) -> str:
    """Which runs have left word of their saves there, and when: it goes into the metrics."""
    from hyperpod_kit.checkpoint.repository import places

    try:
        return " ".join(
            f"{name.encode('utf-8', 'replace').hex()}:{os.fstat(named).st_mtime_ns}"
            for _, name, named in places.listed(folder, ".saves", MOST_OF_ONE, MOST_SAVES)
        )
    except OSError:
        return ""


def kernel_lines(mountinfo: str) -> dict[str, str]:
    """Place, as the kernel writes it -> its lines, in the kernel's order: more than one where mounts lie stacked."""
    found: dict[str, str] = {}
    with open(mountinfo, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        for line in stream:
            place = line.split(" ", 5)[4]
            found[place] = found.get(place, "") + line
    return found


def all_answer(mounts: list[tuple[str, str]], slow: float, touched: str) -> bool:
    """Whether stat and statvfs of every mount say, soon, that all is well.

    mounts: (path, `b` for a bucket or `d`, then `1` where it is read-only); slow: seconds that are too long; touched: a
    file that must take the present for its time too, "" for none.
    """
    from hyperpod_kit.node.health import prober

    reader, writer = os.pipe()
    workers = []
    for number in range(min(WORKERS, len(mounts))):
        pid = os.fork()
        if pid == 0:
            try:
                prober.detach(writer)
                os.setsid()
                for index in range(number, len(mounts), WORKERS):
                    prober.touch(index, "", "", mounts[index][0])
                if number == 0 and touched:
                    os.utime(touched, follow_symlinks=False)
                    os.write(prober.ANSWERS, b"T\n")
            finally:
                os._exit(0)
        workers.append(pid)
    os.close(writer)
    os.set_blocking(reader, False)
    end = time.monotonic() + min(PATIENCE, slow)
    text = b""
    while text.count(b"L ") < len(mounts) or (touched and b"T\n" not in text):
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            text += os.read(reader, 65536)
        except BlockingIOError:
            time.sleep(min(0.005, left))
    well = 0
    for line in text.splitlines():
        words = line.split()
        if words[:1] == [b"L"] and len(words) == 10:
            index, number, _, flags, blocks, available, inodes, free_inodes, taken = (int(word) for word in words[1:])
            bucket = mounts[index][1].startswith("b")
            room = bucket or ((available > 0 or blocks == 0) and (free_inodes > 0 or inodes == 0))
            same = mounts[index][1].endswith(str(flags & os.ST_RDONLY))
            well += number == 0 and room and same and taken < slow * 1e6
    os.close(reader)
    calm = well == len(mounts) and (not touched or b"T\n" in text)
    for pid in workers:
        # Those that wait for a mount are left behind, as ever; the rest have ended.
        if os.waitpid(pid, os.WNOHANG)[0] == 0 and not calm:
            os.kill(pid, 9)
    return calm


def main() -> int:
    try:
        if calm(os.environ.get("HPK_ROOT", "").rstrip("/")):
            return 0
    except Exception:  # whatever is wrong with the note or with this glance, the whole check knows better
        pass
    from hyperpod_kit.node.cli import run

    return run(["health"])


if __name__ == "__main__":
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(here))))
    sys.exit(main())
