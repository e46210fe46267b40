"""A real Slurm of its own: munged, slurmctld and a few slurmds on loopback, everything under one directory.

Nothing outside of that directory is read or written, and only processes started here are ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from tests.support.container_root import ContainerRoot
from tests.support.ports import free_ports
from tests.support.release_root import ReleaseRoot
from tests.support.wait import until

REPOSITORY = Path(__file__).resolve().parents[3]
RELEASE = os.environ.get("HPK_TEST_RELEASE", "")
"""Whose Slurm it is, where it is not this host's: a release of `rehearse up --release`."""
PYXIS = "usr/lib/slurm/spank_pyxis.so"
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "scancel", "cc")

SLURM_CONF = """\
ClusterName=hpk{port}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={base}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd-%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
ReturnToService=0
SlurmdTimeout=10
KillWait=3
MinJobAge=600
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
PlugStackConfig={base}/plugstack.conf
RequeueExitHold=86
NodeName={prefix}[1-{count}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 {node} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> Optional[str]:
    """Why it cannot be started here, or None."""
    if os.geteuid() != 0:
        return "slurmd starts the jobs of another user only as root"
    if RELEASE:
        return None if shutil.which("mmdebstrap") else "not installed: mmdebstrap"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if not any(Path(place, "slurm", "spank.h").exists() for place in ("/usr/include", "/opt/slurm/include")):
        return "not installed: slurm/spank.h (libslurm-dev)"
    return None


class PrivateSlurm:
    """`nodes` slurmds named n1…, or of another `prefix`; jobs run as uid and gid `user` (an ordinary one).

    `node`: more of what the nodes have; `more`: lines of slurm.conf. `release`: whose Slurm, compiler and Python it is,
    "" for this host's own (release_root.py). `containers`: what each node has of enroot and pyxis (containers.py).
    """

    def __init__(
        self,
        base: Path,
        *,
        nodes: int = 3,
        user: int = 65534,
        more: str = "",
        prefix: str = "n",
        node: str = "",
        release: str = RELEASE,
        containers: Optional[Path] = None,
    ) -> None:
        self.base = base
        self.prefix = prefix
        self._node = node
        self._release = release
        self._root: Optional[ReleaseRoot] = None
        self._containers = containers
        self._nodes: Dict[str, ContainerRoot] = {}
        self._more = more
        self.user = user
        self.count = nodes
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLURM")},
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
            "SLURM_CONF": str(base / "slurm.conf"),
        }
        self._daemons: Dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Returns when every node is idle. Raises AssertionError with the place of the logs."""
        base = self.base
        base.chmod(0o755)
        if self._release:
            self._root = ReleaseRoot(self._release)
        (base / "state").mkdir()
        (base / "munge.key").write_bytes(os.urandom(128))
        (base / "munge.key").chmod(0o400)
        source = REPOSITORY / "slurm" / "plugin" / "auto_resume.c"
        options = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-I/opt/slurm/include"]
        self.call("cc", *options, "-o", f"{base}/auto_resume.so", str(source))
        if self._cgroup_conf():
            (base / "cgroup.conf").write_text(self._cgroup_conf())
        plugins = f"optional {base}/auto_resume.so\n"
        if self._containers:
            # Whoever submits loads it as well, and need not be able to read the tree.
            shutil.copy(self._containers / PYXIS, base / "pyxis.so")
            plugins += f"required {base}/pyxis.so runtime_path=/run/pyxis\n"
        (base / "plugstack.conf").write_text(plugins)
        port = free_ports(1 + self.count)
        first = port + 1
        (base / "slurm.conf").write_text(
            SLURM_CONF.format(
                base=base,
                port=port,
                first=first,
                last=first + self.count - 1,
                count=self.count,
                user="root",
                prefix=self.prefix,
                node=self._node,
            )
            + self._more
        )
        self._spawn(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={base}/munge.key",
            f"--socket={base}/munge.socket",
            f"--pid-file={base}/munged.pid",
            f"--log-file={base}/munged.log",
            f"--seed-file={base}/munged.seed",
            "--num-threads=2",
        )
        until((base / "munge.socket").exists, what="munge socket")
        self.start_controller("-i")
        for number in range(1, self.count + 1):
            self.start_node(f"{self.prefix}{number}")
        until(
            lambda: self.call("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self.count),
            timeout=180,
            what=f"{self.count} idle nodes (logs in {base})",
        )

    def stop(self) -> None:
        """End everything that was started here, jobs first. slurmstepds detach, so they are found by our SLURM_CONF."""
        with contextlib.suppress(Exception):
            self.end_jobs()
        for daemon in reversed(list(self._daemons.values())):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(5)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for root in (self._root, *self._nodes.values()):
            if root:
                root.close()

    def end_jobs(self) -> None:
        """Return once no job runs, and Slurm has all nodes back."""
        jobs = self.call("squeue", "-h", "-o", "%i").split()
        if jobs:
            self.call("scancel", "--signal=KILL", "--full", *jobs, check=False)
            self.call("scancel", *jobs, check=False)
        until(lambda: not self.call("squeue", "-h", "-t", "R,CG", "-o", "%i").split(), what="empty queue")

    def start_controller(self, *options: str) -> None:
        """Returns when slurmctld answers."""
        self._spawn("slurmctld", "-D", *options)

        def answers() -> bool:
            log = self.base / "slurmctld.out"
            assert self._daemons["slurmctld"].poll() is None, f"slurmctld has ended: {log.read_text()[-500:]}"
            return "UP" in self.call("scontrol", "ping", check=False)

        until(answers, timeout=180, what=f"slurmctld (logs in {self.base})")

    def kill_daemon(self, tag: str) -> None:
        """SIGKILL `slurmctld`, or the slurmd of a node."""
        daemon = self._daemons.pop(tag)
        daemon.kill()
        daemon.wait(10)

    def start_node(self, name: str) -> None:
        if self._containers and name not in self._nodes:
            self._nodes[name] = ContainerRoot(self._containers)
        self._spawn("slurmd", "-D", "-N", name, tag=name)

    def processes(self) -> List[int]:
        """Living processes whose environment has our SLURM_CONF; not the daemons and not ourselves."""
        ours = f"SLURM_CONF={self.base}/slurm.conf".encode()
        own = {os.getpid(), *(daemon.pid for daemon in self._daemons.values())}
        pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        return [pid for pid in sorted(pids - own) if ours in _environment(pid)]

    def call(self, *argv: str, check: bool = True, as_user: bool = False, cwd: Optional[Path] = None) -> str:
        """Run a Slurm command, as root or as the ordinary user; returns its standard output."""
        user = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"] if as_user else []
        done = subprocess.run(
            self._there([*user, *argv], cwd or self.base),
            env=self.environment,
            cwd=cwd or self.base,
            text=True,
            timeout=60,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert done.returncode == 0 or not check, f"{argv} exited {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout if check else done.stdout + done.stderr

    def sbatch(self, *argv: str, cwd: Path) -> str:
        """Submit as the ordinary user; returns the job id."""
        return self.call("sbatch", "--parsable", *argv, as_user=True, cwd=cwd).strip().split(";")[0]

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\S+)", self.call("scontrol", "-o", "show", "job", job))
        return found.group(1) if found else ""

    def wait_for_script(self, job: str) -> None:
        """Until a batch job's script runs. Until then Slurm says RUNNING of one that its node may still turn away."""
        until(lambda: self._has_process_of(job), timeout=120, what=f"the script of job {job}")

    def _has_process_of(self, job: str) -> bool:
        variable = f"SLURM_JOB_ID={job}".encode()
        return any(variable in _environment(pid) for pid in self.processes())

    def lines_about(self, job: str) -> str:
        """What the daemons have logged about a job."""
        logs = sorted(self.base.glob("slurm*.log"))
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
        return "\n".join(line for line in lines if re.search(rf"JobId={job}\b", line))

    def _cgroup_conf(self) -> str:
        """Nothing here is tracked by cgroups, which newer slurmds would set up for themselves otherwise."""
        return "CgroupPlugin=disabled\n" if self.version() >= (23, 2) else ""

    def version(self) -> tuple[int, int]:
        """(22, 5) of 22.05.8."""
        found = re.search(r"(\d+)\.(\d+)", self.call("slurmctld", "-V"))
        return (int(found.group(1)), int(found.group(2))) if found else (0, 0)

    def _there(self, argv: List[str], cwd: Path, node: str = "") -> List[str]:
        root = self._nodes.get(node) or self._root
        return root.argv(argv, cwd) if root else argv

    def _spawn(self, *argv: str, tag: str = "", here: bool = False) -> None:
        """`here`: this host's program, whichever release the others are of."""
        of_release = self._root is not None and not here
        program = argv[0] if of_release else shutil.which(argv[0], path=self.environment["PATH"]) or argv[0]
        words = [program, *argv[1:]]
        with open(self.base / f"{tag or argv[0]}.out", "ab") as log:
            self._daemons[tag or argv[0]] = subprocess.Popen(
                words if here else self._there(words, self.base, tag),
                env=self.environment,
                cwd=self.base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def _environment(pid: int) -> List[bytes]:
    """The variables a process was started with; none of one that has gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


@contextlib.contextmanager
def running(kind: type[PrivateSlurm] = PrivateSlurm, **how: Any) -> Iterator[PrivateSlurm]:
    """One that is up, with `how` it is made, in a directory that goes with it."""
    # Not under pytest's own directory, into which other users must not look; munge wants a short, safe path.
    base = Path(tempfile.mkdtemp(prefix="hpk-slurm-"))
    cluster = kind(base, **how)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":  # by hand: start in an empty directory and stay until interrupted
    cluster = PrivateSlurm(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cluster.start()
        print(f"export SLURM_CONF={cluster.base}/slurm.conf", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        cluster.stop()
