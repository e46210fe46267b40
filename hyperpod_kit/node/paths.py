"""Where things lie on a node, each fact once, below a root that only tests and the sandbox move.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping

from hyperpod_kit.environment import HPK_ROOT
from hyperpod_kit.slurm import findings, hyperpod

PROGRAM = "/opt/hyperpod-kit/current/bin/hyperpod-kit"
"""The installed program, as units and Slurm name it."""

SPANK_PLUGIN = "/opt/hyperpod-kit/spank/auto_resume.so"


@dataclass(frozen=True)
class NodePaths:
    """Paths of this node. `root` is "" on a node; every property is the real place to open, root included."""

    root: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> NodePaths:
        """`HPK_ROOT` moves everything below a directory."""
        return cls(environ.get(HPK_ROOT, "").rstrip("/"))

    def real(self, path: str) -> str:
        """The place of the node's absolute `path` on this machine."""
        return self.root + path

    # Ours
    @property
    def bundle(self) -> str:
        return self.real("/opt/hyperpod-kit/current")

    @property
    def node_config(self) -> str:
        return self.bundle + "/node_config.json"

    @property
    def spank_plugin(self) -> str:
        return self.real(SPANK_PLUGIN)

    @property
    def facts(self) -> str:
        return self.real("/var/lib/hyperpod-kit/facts.json")

    @property
    def status(self) -> str:
        return self.real("/var/lib/hyperpod-kit/status.json")

    @property
    def carried(self) -> str:
        """The mounts that this node was given, also by earlier configurations."""
        return self.real("/var/lib/hyperpod-kit/mounts.json")

    def deferred_action(self, what: str) -> str:
        """A note that a daemon has yet to read a file that was changed."""
        return self.real(f"/var/lib/hyperpod-kit/owed/{what}")

    @property
    def accounting_copy(self) -> str:
        """The last copy of Slurm's accounting, on this machine's own disk."""
        return self.real("/var/lib/hyperpod-kit/accounting/slurm_acct_db.sql.gz")

    @property
    def accounting_copied(self) -> str:
        """Looks like this once the copy is where it outlives the machine: a file whose time says since when."""
        return self.real("/var/lib/hyperpod-kit/accounting/copied")

    @property
    def known_hosts(self) -> str:
        """The host keys of this cluster's nodes, as the last look found them."""
        return self.real("/var/lib/hyperpod-kit/ssh/known_hosts")

    @property
    def slurmdbd_conf(self) -> str:
        return self.real("/opt/slurm/etc/slurmdbd.conf")

    def script_directory(self, name: str) -> str:
        """Where a script of the configuration runs: a copy of its files."""
        return self.real(f"/var/lib/hyperpod-kit/scripts/{name}/files")

    def script_stamp(self, name: str) -> str:
        """What of a script has run to its end."""
        return self.real(f"/var/lib/hyperpod-kit/scripts/{name}/done")

    def running_script(self, name: str) -> str:
        """Who it is, while it runs."""
        return self.real(f"/var/lib/hyperpod-kit/scripts/{name}/at-work")

    def script_log(self, name: str) -> str:
        """What it said the last time; beside the only file that HyperPod ships."""
        return self.real(f"/var/log/provision/script-{name}.log")

    def optional_mark(self, name: str) -> str:
        """There since an optional step has begun here, until it is taken back."""
        return self.real(f"/var/lib/hyperpod-kit/steps/{name}/on")

    def optional_stamp(self, name: str) -> str:
        """With what an optional step has last run to its end."""
        return self.real(f"/var/lib/hyperpod-kit/steps/{name}/done")

    @property
    def package_cache(self) -> str:
        """Packages of mount clients on their way from a URL to apt."""
        return self.real("/var/cache/hyperpod-kit/packages")

    @property
    def health(self) -> str:
        """What the last checks found, of all mounts; as volatile as the mounts are."""
        return self.real("/run/hyperpod-kit/health.json")

    @property
    def published_state(self) -> str:
        """What the last line about the mounts in provisioning.log said, and when."""
        return self.real("/run/hyperpod-kit/told")

    def repair_result(self, name: str) -> str:
        """How the last repair of a mount ended."""
        return self.real(f"/run/hyperpod-kit/repairs/{name}.json")

    def degraded_mark(self, name: str) -> str:
        """There while a mount has failed too many checks in a row."""
        return self.real(f"/run/hyperpod-kit/degraded/{name}")

    def secret(self, name: str) -> str:
        """A fetched secret: in memory, for its owner alone."""
        return self.real(f"/run/hyperpod-kit/secrets/{name}")

    @property
    def gate_mark(self) -> str:
        """When the gate last kept a job from starting, and why."""
        return self.real("/run/hyperpod-kit/gate-closed.json")

    @property
    def drain_note(self) -> str:
        """What we told Slurm about this node; outlives a reboot, as the drain does."""
        return self.real("/var/lib/hyperpod-kit/drain.json")

    @property
    def devices(self) -> str:
        """What the last look at GPUs and EFA devices found."""
        return self.real("/run/hyperpod-kit/devices.json")

    @property
    def devices_note(self) -> str:
        """What we told Slurm about them; outlives a reboot, as the drain does."""
        return self.real("/var/lib/hyperpod-kit/devices.json")

    @property
    def devices_gate_mark(self) -> str:
        """When the gate last kept a job from starting for one of them."""
        return self.real("/run/hyperpod-kit/devices-gate-closed.json")

    @property
    def slurm_guard(self) -> str:
        """What the last look at Slurm found; as volatile as that is."""
        return self.real(findings.RECORD)

    def stuck_program(self, name: str) -> str:
        """Which process of a program that asks the driver was killed and has not ended."""
        return self.real(f"/run/hyperpod-kit/programs/{name}.json")

    def lock(self, name: str) -> str:
        return self.real(f"/run/hyperpod-kit/locks/{name}")

    def mount_record(self, name: str) -> str:
        """Which kernel mount is the one that we made; volatile, as the mount is."""
        return self.real(f"/run/hyperpod-kit/mounts/{name}.json")

    def starts(self, name: str) -> str:
        """How often a daemon was started since it last served."""
        return self.real(f"/run/hyperpod-kit/starts/{name}.json")

    def unit_record(self, name: str) -> str:
        """Which unit file a mount was brought up with since boot."""
        return self.real(f"/run/hyperpod-kit/units/{name}.json")

    def stuck_probe(self, name: str) -> str:
        return self.real(f"/run/hyperpod-kit/probes/{name}.json")

    @property
    def log(self) -> str:
        return self.real("/var/log/provision/provisioning.log")

    @property
    def memory_note(self) -> str:
        """When captures of which job are tried to be saved again."""
        return self.real("/run/hyperpod-kit/memory.json")

    @property
    def packet_rules(self) -> str:
        """What the last look at the rules of the packet filter found; as volatile as they are."""
        return self.real("/run/hyperpod-kit/packet-rules.json")

    @property
    def munge_note(self) -> str:
        """How often munged was started since it last ran, and when."""
        return self.real("/run/hyperpod-kit/munge.json")

    # The system's
    @property
    def munge_key(self) -> str:
        return self.real("/etc/munge/munge.key")

    @property
    def proc(self) -> str:
        return self.real("/proc")

    @property
    def shared_memory(self) -> str:
        return self.real("/dev/shm")

    @property
    def mountinfo(self) -> str:
        return self.real("/proc/self/mountinfo")

    @property
    def hostname(self) -> str:
        return self.real("/proc/sys/kernel/hostname")

    @property
    def kernel_log(self) -> str:
        return self.real("/dev/kmsg")

    @property
    def pci_devices(self) -> str:
        return self.real("/sys/bus/pci/devices")

    @property
    def boot_id(self) -> str:
        return self.real("/proc/sys/kernel/random/boot_id")

    @property
    def cgroups(self) -> str:
        return self.real("/sys/fs/cgroup")

    def cmdline(self, pid: int) -> str:
        return self.real(f"/proc/{pid}/cmdline")

    def unit(self, name: str) -> str:
        return self.real(f"/etc/systemd/system/{name}")

    @property
    def fuse_conf(self) -> str:
        return self.real("/etc/fuse.conf")

    @property
    def efs_state(self) -> str:
        """efs-utils keeps one file a TLS mount here: <fs-id>.<path with dots>.<port>."""
        return self.real("/var/run/efs")

    @property
    def uptime(self) -> str:
        return self.real("/proc/uptime")

    # HyperPod's
    @property
    def resource_config(self) -> str:
        return self.real("/opt/ml/config/resource_config.json")

    @property
    def provisioning_parameters(self) -> str:
        """What the cluster was created with, where HyperPod keeps it."""
        return self.real("/opt/ml/config/provisioning_parameters.json")

    @property
    def slurm_conf(self) -> str:
        return self.real("/opt/slurm/etc/slurm.conf")

    @property
    def plugstack_conf(self) -> str:
        return self.real("/opt/slurm/etc/plugstack.conf")

    @property
    def hyperpod_mark(self) -> str:
        """A directory of a HyperPod's nodes."""
        return self.real(hyperpod.NODE_DIRECTORY)

    @property
    def fetched_slurm_conf(self) -> str:
        """What a slurmd has fetched from the controller (configless), and all Slurm commands of its node go by."""
        return self.real("/run/slurm/conf/slurm.conf")

    @property
    def scontrol(self) -> str:
        return self.real("/opt/slurm/bin/scontrol")
