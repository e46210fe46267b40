"""The host: clock, page cache, processor time by owner, memory of the whole machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time


def now() -> float:
    return time.perf_counter()


def drop_caches() -> None:
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3\n")


def fsync_tree(path: str) -> None:
    """Make everything under `path` durable: every file, every directory, and the parent directory."""

    def fsync_path(p, flags):
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(p, flags)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    if os.path.isfile(path):
        fsync_path(path, os.O_RDONLY)
    else:
        for d, _, files in os.walk(path):
            for f in files:
                fsync_path(os.path.join(d, f), os.O_RDONLY)
            fsync_path(d, os.O_RDONLY | os.O_DIRECTORY)
    fsync_path(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)


def tree_bytes(path: str) -> int:
    if os.path.isfile(path):
        return os.path.getsize(path)
    n = 0
    for d, _, files in os.walk(path):
        for f in files:
            with contextlib.suppress(FileNotFoundError):
                n += os.path.getsize(os.path.join(d, f))
    return n


def list_tree(path: str) -> dict:
    out = {}
    for d, _, files in os.walk(path):
        for f in files:
            p = os.path.join(d, f)
            with contextlib.suppress(FileNotFoundError):
                out[os.path.relpath(p, path)] = os.path.getsize(p)
    return out


def busy_cpu_seconds() -> float:
    """Busy CPU seconds of the whole machine (all cores) since boot."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:]]
    idle = v[3] + v[4]
    return (sum(v[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def cpu_seconds_by_owner() -> tuple[float, float, float]:
    """(busy seconds of the whole machine, of this benchmark's process tree, of kernel threads), since boot.

    The tree is everything below the process named by BENCH_PID (run_all.py).
    """
    tck = os.sysconf("SC_CLK_TCK")
    root = int(os.environ.get("BENCH_PID", os.getpid()))
    par, cpu = {}, {}
    for d in os.listdir("/proc"):
        if d.isdigit():
            try:
                with open(f"/proc/{d}/stat") as f:
                    v = f.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            par[int(d)] = int(v[1])
            cpu[int(d)] = (int(v[11]) + int(v[12]) + int(v[13]) + int(v[14])) / tck
    subtree_seconds = k = 0.0
    for pid in par:
        q = pid
        while q in par and q not in (root, 2, 1, 0):
            q = par[q]
        if q == root:
            subtree_seconds += cpu[pid]
        elif q == 2:
            k += cpu[pid]
    return busy_cpu_seconds(), subtree_seconds, k


def foreign_cpu_seconds(a, b) -> float:
    """CPU seconds used between two cpu_split() calls by processes that are neither ours nor the kernel's."""
    return max(0.0, (b[0] - a[0]) - (b[1] - a[1]) - (b[2] - a[2]))


def wait_until_quiet(timeout: float, max_busy_cores: float = 0.12) -> float:
    """Wait until the machine is idle (busy cores over 150 ms below `level`), at most `limit` seconds."""
    t0 = now()
    while True:
        a, t = busy_cpu_seconds(), now()
        time.sleep(0.15)
        lv = (busy_cpu_seconds() - a) / (now() - t)
        if lv <= max_busy_cores or now() - t0 > timeout:
            return lv


def anon_and_shmem_bytes() -> int:
    a = s = 0
    with open("/proc/meminfo") as f:
        for line in f:
            if line.startswith("AnonPages:"):
                a = int(line.split()[1])
            elif line.startswith("Shmem:"):
                s = int(line.split()[1])
                break
    return (a + s) * 1024


_SAMPLER = r"""
import sys, time, select
def rd():
    a = s = d = 0
    for line in open("/proc/meminfo"):
        if line.startswith("Dirty:"): d = int(line.split()[1])
        elif line.startswith("AnonPages:"): a = int(line.split()[1])
        elif line.startswith("Shmem:"): s = int(line.split()[1]); break
    return a, s, d
pk = 0; pa = ps = 0
while True:
    a, s, d = rd()
    if a + s > pk: pk, pa, ps = a + s, a, s
    r, _, _ = select.select([sys.stdin], [], [], 0.01)
    if r:
        c = sys.stdin.readline()
        if not c: break
        print(pk * 1024, pa * 1024, ps * 1024, flush=True)
        pk = 0
"""


class MemSampler:
    """Peak of AnonPages+Shmem over the whole machine, sampled every 10 ms by a separate tiny process.

    The system-wide counters are used because they count copy-on-write, forked and shared pages once,
    which sums of per-process RSS do not.
    """

    def __init__(self):
        self.p = subprocess.Popen(
            [sys.executable, "-S", "-c", _SAMPLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read_and_reset_peak(self) -> tuple[int, int, int]:
        """Return (peak, anon at peak, shmem at peak) since the last call and start again."""
        self.p.stdin.write("x\n")
        self.p.stdin.flush()
        return tuple(int(v) for v in self.p.stdout.readline().split())

    def close(self):
        self.p.stdin.close()
        self.p.wait()


def write_json(path, obj):
    tmp = path + ".tmp"
    with open(tmp, "w") as f:
        json.dump(obj, f, indent=1, sort_keys=True)
    os.replace(tmp, path)
