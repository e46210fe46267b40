"""What watching mounts costs a node: the health check as its timer runs it, on real mounts, for as long as you like.

    sudo python lab/programs/health_cost.py [--mounts 20] [--interval 30] [--minutes 10] [--hung 0]
        [--python /usr/bin/python3]

Prints one JSON object. A quarter of the mounts each stand for EFS, Lustre and Mountpoint (FUSE daemons of the
rehearsal, each a process of its own) and for local scratch (bind mounts of a tmpfs). Every tick is the installed
command of a bundle, started as the unit starts it; its CPU time is that of all its processes, those that it abandons
included. Only CPU time is counted, so it may run beside other work. `--hung N` stops the daemons of N mounts first.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterator, List

from hyperpod_kit.bundle import contents, sources
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.model.node_config import HealthPolicy, NodeConfig
from hyperpod_kit.model.units import carrier_unit
from hyperpod_kit.node.machine.facts import NodeFacts

PR_SET_CHILD_SUBREAPER = 36
DAEMON = """
import os, sys
from hyperpod_rehearsal.standins.fuse.session import FuseSession, mount_and_return_fuse_descriptor
from hyperpod_rehearsal.standins.passthrough.filesystem import PassThrough
store, target, source, subtype = sys.argv[1:5]
files = PassThrough(store, None)
kind = "fuse." + subtype if subtype else "fuse"
descriptor = mount_and_return_fuse_descriptor(source, target, kind, options="allow_other")
session = FuseSession(descriptor, target, files.handlers(), files.forget)
session.start()
os.stat(target)
print("mounted", flush=True)
session.wait_until_unmounted()
"""


def make_mounts(count: int) -> List[Mount]:
    made: List[Mount] = []
    for number in range(count):
        name, path = f"m{number}", f"/mnt/m{number}"
        made.append(
            (
                EfsMount(name, path, f"fs-{number:017x}"),
                LustreMount(name, path, f"fs-{number:017x}.fsx.us-east-1.amazonaws.com", f"name{number:04d}"),
                S3Mount(name, path, f"sagemaker-bucket-{number}", read_only=False, allow_delete=True),
                NvmeMount(name, path),
            )[number % 4]
        )
    return made


def kernel_source_and_subtype(mount: Mount) -> tuple[str, str]:
    """(what the kernel shows as source, subtype of FUSE)."""
    if isinstance(mount, EfsMount):
        return "127.0.0.1:/", "efs"
    if isinstance(mount, LustreMount):
        return f"10.1.0.1@tcp:/{mount.mount_name}", "lustre"
    return "mountpoint-s3", ""


def install_bundle(root: Path, config: NodeConfig, python: str) -> None:
    """Install a bundle below a root as on_create.sh leaves it, without its units."""
    home = root / "opt/hyperpod-kit"
    for relative_path, path in contents.list_copied_sources(sources.locate_sources()):
        target = home / "0123456789abcdef" / relative_path
        target.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes()
        if relative_path.startswith("bin/"):
            text = text.replace(b"/usr/bin/python3", python.encode())
        target.write_bytes(text)
        target.chmod(0o755)
    (home / "0123456789abcdef/node_config.json").write_text(config.to_json())
    (home / "current").symlink_to("0123456789abcdef")
    facts = NodeFacts("ip-10-1-0-20", "10.1.0.20", "i-0w", "workers", "compute", "us-east-1", "aws", "10.1.0.10")
    (root / "var/lib/hyperpod-kit").mkdir(parents=True)
    (root / "var/lib/hyperpod-kit/facts.json").write_text(json.dumps(facts.to_dict()))


@contextlib.contextmanager
def mounted_below(root: Path, mounts: List[Mount]) -> Iterator[Dict[str, subprocess.Popen[str]]]:
    """All mounts below root, and what a node has beside them to tell what they are; yields the daemons by name."""
    daemons: Dict[str, subprocess.Popen[str]] = {}
    try:
        instance_store = root / "opt/dlami/nvme"
        instance_store.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(instance_store)], check=True)
        for mount in mounts:
            target, store = Path(f"{root}{mount.path}"), root / "stores" / mount.name
            target.mkdir(parents=True)
            store.mkdir(parents=True)
            if isinstance(mount, NvmeMount):
                directory = root / f"opt/dlami/nvme/hyperpod-kit/{mount.name}"
                directory.mkdir(parents=True)
                subprocess.run(["mount", "--bind", str(directory), str(target)], check=True)
                continue
            daemon = subprocess.Popen(
                [sys.executable, "-c", DAEMON, str(store), str(target), *kernel_source_and_subtype(mount)],
                stdout=subprocess.PIPE,
                text=True,
            )
            daemons[mount.name] = daemon
            if daemon.stdout is None or daemon.stdout.readline() != "mounted\n":
                raise SystemExit(f"{mount.name}: the daemon did not mount")
            if isinstance(mount, S3Mount):
                cgroup = root / "sys/fs/cgroup/system.slice" / carrier_unit(mount)
                process = root / "proc" / str(daemon.pid)
                cgroup.mkdir(parents=True)
                process.mkdir(parents=True)
                (cgroup / "cgroup.procs").write_text(f"{daemon.pid}\n")
                (process / "cmdline").write_text("\0".join(["/usr/bin/mount-s3", mount.bucket, mount.path]) + "\0")
        (root / "proc/self").mkdir(parents=True, exist_ok=True)
        (root / "proc/self/mountinfo").write_text(Path("/proc/self/mountinfo").read_text().replace(f" {root}/", " /"))
        yield daemons
    finally:
        for daemon in daemons.values():
            daemon.kill()
            daemon.wait()
        for mount in mounts:
            subprocess.run(["umount", "--lazy", f"{root}{mount.path}"], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "--lazy", str(instance_store)], check=False, stderr=subprocess.DEVNULL)


def run_health_check(root: Path, python: str) -> Dict[str, float]:
    """Run the command once: CPU seconds and peak memory (bytes) of all its processes, the abandoned ones too."""
    started_at = time.monotonic()
    # What the unit's ExecStart says.
    command = [f"{root}/opt/hyperpod-kit/current/bin/hyperpod-kit", "node", "health"]
    with open(root / "said", "ab") as output:
        # As systemd starts a service: from /, with an environment of its own.
        child = subprocess.Popen(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HPK_ROOT": str(root)},
        )
    cpu, memory, wall, code = 0.0, 0, 0.0, -1
    options = 0
    while True:
        try:
            pid, status, usage = os.wait4(-1, options)
        except ChildProcessError:
            break
        if pid == 0:
            break
        cpu += usage.ru_utime + usage.ru_stime
        memory = max(memory, usage.ru_maxrss * 1024)
        if pid == child.pid:
            wall, code = time.monotonic() - started_at, os.waitstatus_to_exitcode(status)
            child.returncode = code
            if code >= 0:
                options = os.WNOHANG
            time.sleep(0.2)  # for the end of the probers: they are reaped here, not by the command
    return {"cpu": cpu, "memory": memory, "wall": wall, "exit": code}


def count_state_files(root: Path) -> Dict[str, int]:
    """Files and bytes that the checks keep."""
    paths = [*(root / "run").rglob("*"), *(root / "var").rglob("*")]
    files = [path for path in paths if path.is_file()]
    return {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mounts", type=int, default=20)
    parser.add_argument("--interval", type=float, default=30.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--hung", type=int, default=0)
    parser.add_argument("--python", default="/usr/bin/python3")
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    root = Path(tempfile.mkdtemp(prefix="health-cost-"))
    mounts = make_mounts(args.mounts)
    config = NodeConfig(
        "bench",
        "on_create",
        {"workers": "compute"},
        tuple(mounts),
        health=HealthPolicy(interval=args.interval, deadline=min(5.0, args.interval / 2)),
    )
    try:
        install_bundle(root, config, args.python)
        with mounted_below(root, mounts) as daemons:
            for daemon in list(daemons.values())[: args.hung]:
                daemon.send_signal(signal.SIGSTOP)
            print(json.dumps(measure_ticks(root, args), indent=2))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def measure_ticks(root: Path, args: argparse.Namespace) -> Dict[str, object]:
    run_health_check(root, args.python)  # compiles the program, as creation's first commands do
    first = count_state_files(root)
    ticks: List[Dict[str, float]] = []
    started_at = time.monotonic()
    for number in range(max(2, round(args.minutes * 60 / args.interval))):
        time.sleep(max(0.0, started_at + number * args.interval - time.monotonic()))
        ticks.append(run_health_check(root, args.python))
    seconds = max(time.monotonic() - started_at, len(ticks) * args.interval)
    cpu = [sample["cpu"] for sample in ticks]
    states: Dict[str, int] = {}
    for record in json.loads((root / "run/hyperpod-kit/health.json").read_text())["mounts"].values():
        states[record["status"]["state"]] = states.get(record["status"]["state"], 0) + 1
    version = subprocess.run([args.python, "-V"], text=True, stdout=subprocess.PIPE).stdout.strip()
    return {
        "mounts": args.mounts,
        "states": states,
        "interval_s": args.interval,
        "ticks": len(ticks),
        "seconds": round(seconds, 1),
        "python": version,
        "percent_of_one_core": round(100 * sum(cpu) / seconds, 3),
        "cpu_ms_a_tick": min_median_max([1000 * value for value in cpu]),
        "wall_ms_a_tick": min_median_max([1000 * sample["wall"] for sample in ticks]),
        "peak_memory_mib": {
            "first": peak_memory_mib(ticks[0]),
            "last": peak_memory_mib(ticks[-1]),
            "max": max(map(peak_memory_mib, ticks)),
        },
        "kept_on_disk": {"first": first, "last": count_state_files(root)},
        "exit_codes": sorted({sample["exit"] for sample in ticks}),
        "said": (root / "said").read_text().splitlines()[:5],
    }


def min_median_max(values: List[float]) -> Dict[str, float]:
    return {"min": round(min(values), 1), "median": round(statistics.median(values), 1), "max": round(max(values), 1)}


def peak_memory_mib(tick: Dict[str, float]) -> float:
    return round(tick["memory"] / 2**20, 1)


if __name__ == "__main__":
    main()
