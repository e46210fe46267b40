"""One machine: an overlay on the image, its own network, cgroup and clock, and systemd-nspawn around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Optional, Sequence, Tuple

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.run import Completed, LocalRunner
from hyperpod_kit.system.process import Process, identify_unless_gone_or_zombie
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.machines import cgroups, host, host_mounts, launch, processes
from hyperpod_rehearsal.records.layout import Layout

REBOOT_EXIT = 133
"""What systemd-nspawn --keep-unit exits with when the machine asked for a reboot."""
INSTANCE_STORE = "/opt/dlami/nvme"
RETAINED_LOGS = (
    "console.log",
    "root/var/log/provision/provisioning.log",
    "root/var/log/hyperpod-rehearsal/lifecycle.log",
    "root/var/log/slurmctld.log",
    "root/var/log/slurmd.log",
)


@dataclass(frozen=True)
class MachineOptions:
    """What all machines share. `shares`: (directory here, path in the node), read-only; `shm_size`: tmpfs size."""

    shares: Tuple[Tuple[str, str], ...] = ()
    shm_size: str = "2G"


def command_in_machine(leader: int, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` in the machine whose PID 1 is `leader` here."""
    return [
        "nsenter",
        "-t",
        str(leader),
        "-m",
        "-u",
        "-i",
        "-n",
        "-p",
        "--",
        "env",
        "-i",
        "PATH=/opt/slurm/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "TZ=UTC",
        "HOME=/root",
        *argv,
    ]


class Machines:
    """Starts, ends and removes the machines of one rehearsal. Use from one process; methods may run in any thread."""

    def __init__(self, layout: Layout, options: MachineOptions) -> None:
        self.layout = layout
        self.options = options
        self._runner = LocalRunner()
        self._running: Dict[str, subprocess.Popen[bytes]] = {}

    def directory(self, instance_id: str) -> Path:
        return self.layout.nodes / instance_id

    def root(self, instance_id: str) -> Path:
        """The node's root file system, seen from the host."""
        return self.directory(instance_id) / "root"

    def mount_overlay_root(self, instance_id: str) -> Path:
        """Mount a fresh overlay and return its root. Raises RunError when the kernel refuses it."""
        directory = self.directory(instance_id)
        for name in ("up", "work", "root"):
            by_descriptor.make_directories(directory / name)
        by_descriptor.set_mode(directory / "up", 0o755)
        # volatile: nobody mounts this upper directory again, so its syncs may be skipped.
        options = (
            f"lowerdir={self.layout.layer}:{self.layout.image_mount_point},upperdir={directory / 'up'},"
            f"workdir={directory / 'work'},volatile"
        )
        self._runner.run(["mount", "-t", "overlay", f"hpk-{instance_id}", "-o", options, str(directory / "root")])
        return directory / "root"

    def start(self, instance_id: str, host_name: str, instance_store: bool = False) -> Process:
        """Boot a prepared and attached machine and return its supervisor's identity. Raises RehearsalError.

        instance_store: with local NVMe, mounted where the AMI's own service puts it and empty after every boot.
        """
        groups = cgroups.create_cgroup_in_every_hierarchy(f"{self.layout.cgroup}/{instance_id}")
        argv = [
            sys.executable,
            "-I",
            "-S",
            str(Path(launch.__file__)),
            *map(str, groups),
            "--",
            *self._nspawn_command(instance_id, host_name, instance_store),
        ]
        # Where this host has both, systemd-nspawn gives the machine what the host's own systemd has, which is v1.
        if cgroups.systemd_requires_cgroup_v2(self.layout.image_mount_point):
            unified = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        else:
            unified = {}
        with by_descriptor.open_stream_for_writing(self.directory(instance_id) / "console.log", "ab") as console:
            proc = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
                env={"PATH": host.path_with_sbin(), "HOME": "/root", **unified},
            )
        self._running[instance_id] = proc
        identity = identify_unless_gone_or_zombie(proc.pid)
        if identity is None:
            raise RehearsalError(f"machine {instance_id} ended at once")
        return identity

    def _nspawn_command(self, instance_id: str, host_name: str, instance_store: bool) -> list[str]:
        layout = self.layout
        binds = [f"--bind-ro={here}:{there}" for here, there in self.options.shares]
        binds += [f"--bind={here}:/hpk/{kind}" for kind, here in layout.file_systems.items()]
        if instance_store:
            binds.append(f"--tmpfs={INSTANCE_STORE}:mode=0755,size=1G")
        return [
            "systemd-nspawn",
            "--quiet",
            "--register=no",
            "--keep-unit",
            f"--machine={layout.machine_name(instance_id)}",
            f"--directory={self.root(instance_id)}",
            f"--network-namespace-path=/run/netns/{layout.netns(instance_id)}",
            f"--hostname={host_name}",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=pipe",
            "--kill-signal=SIGRTMIN+4",
            # A device node of our own: the node's tmpfiles would change the mode of the host's.
            f"--bind={layout.root / 'dev-fuse'}:/dev/fuse",
            "--capability=CAP_NET_ADMIN,CAP_SYS_ADMIN",
            "--drop-capability=CAP_MKNOD",
            f"--tmpfs=/dev/shm:mode=1777,size={self.options.shm_size}",
            *binds,
            "--boot",
            "systemd.show_status=0",
        ]

    def exit_code(self, instance_id: str) -> Optional[int]:
        """Exit code of a machine that ended, None while it runs or when it was never started."""
        proc = self._running.get(instance_id)
        if proc is None:
            return None
        return proc.poll()

    def leader_pid(self, instance_id: str) -> Optional[int]:
        """Pid, on the host, of the machine's PID 1; None when the machine does not run."""
        proc = self._running.get(instance_id)
        if proc is None or proc.poll() is not None:
            return None
        children = processes.children(proc.pid)
        if children:
            return children[0]
        return None

    def execute(self, instance_id: str, argv: Sequence[str], timeout: float = 20.0, check: bool = True) -> Completed:
        """Run a command inside as the platform's agent would: root, no login. Raises RehearsalError, RunError."""
        leader = self.leader_pid(instance_id)
        if leader is None:
            raise RehearsalError(f"machine {instance_id} does not run")
        return self._runner.run(command_in_machine(leader, argv), timeout=timeout, check=check)

    def kill(self, instance_id: str) -> None:
        """SIGKILL the whole machine and wait until the kernel has taken every process of it away."""
        leader = self.leader_pid(instance_id)
        if leader is not None:
            with suppress(ProcessLookupError):
                os.kill(leader, signal.SIGKILL)
        proc = self._running.get(instance_id)
        if proc is not None:
            proc.kill()  # in its first milliseconds it has not joined the cgroup yet
        cgroups.kill_members(f"{self.layout.cgroup}/{instance_id}")
        if proc is not None:
            with suppress(subprocess.TimeoutExpired):
                proc.wait(timeout=10)

    def copy_retained_logs(self, instance_id: str) -> None:
        """Copy the logs of a machine that is about to be removed to <state>/logs/<instance>/."""
        target = self.layout.retained_logs / instance_id
        for name in RETAINED_LOGS:
            source = self.directory(instance_id) / name
            with suppress(OSError):
                if source.is_file():
                    by_descriptor.make_directories(target)
                    by_descriptor.copy_file(source, target / source.name)

    def remove(self, instance_id: str) -> None:
        """End a machine and remove its cgroup, mount and directory; repeatable.

        Its network is removed by Network.remove_node_namespace_and_link.
        """
        self.kill(instance_id)
        self._running.pop(instance_id, None)
        self.copy_retained_logs(instance_id)
        cgroups.remove_group(f"{self.layout.cgroup}/{instance_id}")
        host_mounts.unmount_below_and_list_remaining(self.directory(instance_id), self._runner)
        by_descriptor.remove_tree(self.directory(instance_id), ignore_errors=True)
