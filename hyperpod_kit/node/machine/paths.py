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
        """Return the paths of this node; `HPK_ROOT` moves everything below a directory."""
        return cls(environ.get(HPK_ROOT, "").rstrip("/"))

    def under_root(self, path: str) -> str:
        """Return the path to open on this machine for the node's absolute `path`: the root goes before it."""
        return self.root + path

    # Ours
    @property
    def bundle(self) -> str:
        return self.under_root("/opt/hyperpod-kit/current")

    @property
    def node_config(self) -> str:
        return self.bundle + "/node_config.json"

    @property
    def spank_plugin(self) -> str:
        return self.under_root(SPANK_PLUGIN)

    @property
    def facts(self) -> str:
        return self.under_root("/var/lib/hyperpod-kit/facts.json")

    @property
    def apply_status(self) -> str:
        return self.under_root("/var/lib/hyperpod-kit/status.json")

    @property
    def recorded_mounts(self) -> str:
        """File with the mounts that this node was given, also by earlier configurations."""
        return self.under_root("/var/lib/hyperpod-kit/mounts.json")

    def deferred_action(self, what: str) -> str:
        """File whose existence says that a daemon has yet to read a file that was changed."""
        return self.under_root(f"/var/lib/hyperpod-kit/owed/{what}")

    @property
    def accounting_database_dump(self) -> str:
        """The last copy of Slurm's accounting, on this machine's own disk."""
        return self.under_root("/var/lib/hyperpod-kit/accounting/slurm_acct_db.sql.gz")

    @property
    def accounting_dump_saved_stamp(self) -> str:
        """File whose time says since when the copy is where it outlives the machine."""
        return self.under_root("/var/lib/hyperpod-kit/accounting/copied")

    @property
    def cluster_known_hosts(self) -> str:
        """File with the host keys of this cluster's nodes, as they were gathered last."""
        return self.under_root("/var/lib/hyperpod-kit/ssh/known_hosts")

    @property
    def slurmdbd_conf(self) -> str:
        return self.under_root("/opt/slurm/etc/slurmdbd.conf")

    def script_directory(self, name: str) -> str:
        """Where a script of the configuration runs: a copy of its files."""
        return self.under_root(f"/var/lib/hyperpod-kit/scripts/{name}/files")

    def script_stamp(self, name: str) -> str:
        """File with the digest of the script's files and arguments at its last success."""
        return self.under_root(f"/var/lib/hyperpod-kit/scripts/{name}/done")

    def running_script_record(self, name: str) -> str:
        """File with the process of the script while it runs."""
        return self.under_root(f"/var/lib/hyperpod-kit/scripts/{name}/at-work")

    def script_log(self, name: str) -> str:
        """File with the output of the script's last run; beside the only file that HyperPod ships."""
        return self.under_root(f"/var/log/provision/script-{name}.log")

    def optional_step_begun_mark(self, name: str) -> str:
        """File that exists since an optional step has begun here, until it is undone."""
        return self.under_root(f"/var/lib/hyperpod-kit/steps/{name}/on")

    def optional_step_done_stamp(self, name: str) -> str:
        """File with what an optional step has last run to its end with."""
        return self.under_root(f"/var/lib/hyperpod-kit/steps/{name}/done")

    @property
    def training_environment_failure(self) -> str:
        """File that says why this node has no usable training environment; absent when it has one."""
        return self.under_root("/var/lib/hyperpod-kit/steps/training-environment/failed")

    @property
    def package_cache(self) -> str:
        """Packages of mount clients on their way from a URL to apt."""
        return self.under_root("/var/cache/hyperpod-kit/packages")

    @property
    def health_records(self) -> str:
        """File with the records of all mounts by the last checks; as volatile as the mounts are."""
        return self.under_root("/run/hyperpod-kit/health.json")

    @property
    def last_logged_mounts_line(self) -> str:
        """File with what the last line about the mounts in provisioning.log was, and when."""
        return self.under_root("/run/hyperpod-kit/told")

    def repair_result(self, name: str) -> str:
        """How the last repair of a mount ended."""
        return self.under_root(f"/run/hyperpod-kit/repairs/{name}.json")

    def degraded_mark(self, name: str) -> str:
        """File that exists while a mount has failed too many checks in a row."""
        return self.under_root(f"/run/hyperpod-kit/degraded/{name}")

    def secret(self, name: str) -> str:
        """A fetched secret: in memory, for its owner alone."""
        return self.under_root(f"/run/hyperpod-kit/secrets/{name}")

    @property
    def gate_refusal_record(self) -> str:
        """File that says when the gate last kept a job from starting, and why."""
        return self.under_root("/run/hyperpod-kit/gate-closed.json")

    @property
    def last_drain_request_note(self) -> str:
        """File with what was last sent to Slurm about this node's mounts; outlives a reboot, as the drain does."""
        return self.under_root("/var/lib/hyperpod-kit/drain.json")

    @property
    def device_record(self) -> str:
        """File with what the last check of GPUs and EFA devices found."""
        return self.under_root("/run/hyperpod-kit/devices.json")

    @property
    def last_devices_drain_request_note(self) -> str:
        """File with what was last sent to Slurm about the devices; outlives a reboot, as the drain does."""
        return self.under_root("/var/lib/hyperpod-kit/devices.json")

    @property
    def devices_gate_refusal_record(self) -> str:
        """File that says when the gate last kept a job from starting for one of the devices."""
        return self.under_root("/run/hyperpod-kit/devices-gate-closed.json")

    @property
    def slurm_guard_record(self) -> str:
        """File with what the guard's last check of Slurm found; as volatile as that is."""
        return self.under_root(findings.RECORD)

    def stuck_device_tool_record(self, name: str) -> str:
        """File that says which process of a program that asks the driver was killed and has not ended."""
        return self.under_root(f"/run/hyperpod-kit/programs/{name}.json")

    def lock(self, name: str) -> str:
        return self.under_root(f"/run/hyperpod-kit/locks/{name}")

    def mount_record(self, name: str) -> str:
        """File that says which kernel mount is the one that the kit made; volatile, as the mount is."""
        return self.under_root(f"/run/hyperpod-kit/mounts/{name}.json")

    def daemon_start_count(self, name: str) -> str:
        """File with how often a mount's daemon was started since it last served."""
        return self.under_root(f"/run/hyperpod-kit/starts/{name}.json")

    def started_unit_text_record(self, name: str) -> str:
        """File that says which unit text a mount was brought up with since boot."""
        return self.under_root(f"/run/hyperpod-kit/units/{name}.json")

    def stuck_probe_record(self, name: str) -> str:
        return self.under_root(f"/run/hyperpod-kit/probes/{name}.json")

    @property
    def provisioning_log(self) -> str:
        return self.under_root("/var/log/provision/provisioning.log")

    @property
    def memory_retry_note(self) -> str:
        """File that says when the captures of which job are tried to be saved again."""
        return self.under_root("/run/hyperpod-kit/memory.json")

    @property
    def packet_rules_note(self) -> str:
        """File with the state of the packet filter's rules at the last check; as volatile as they are."""
        return self.under_root("/run/hyperpod-kit/packet-rules.json")

    @property
    def munge_start_note(self) -> str:
        """File that says how often munged was started since it last ran, and when."""
        return self.under_root("/run/hyperpod-kit/munge.json")

    # The system's
    @property
    def munge_key(self) -> str:
        return self.under_root("/etc/munge/munge.key")

    @property
    def proc(self) -> str:
        return self.under_root("/proc")

    @property
    def shared_memory(self) -> str:
        return self.under_root("/dev/shm")

    @property
    def mountinfo(self) -> str:
        return self.under_root("/proc/self/mountinfo")

    @property
    def hostname(self) -> str:
        return self.under_root("/proc/sys/kernel/hostname")

    @property
    def kernel_log(self) -> str:
        return self.under_root("/dev/kmsg")

    @property
    def pci_devices(self) -> str:
        return self.under_root("/sys/bus/pci/devices")

    @property
    def boot_id(self) -> str:
        return self.under_root("/proc/sys/kernel/random/boot_id")

    @property
    def cgroups(self) -> str:
        return self.under_root("/sys/fs/cgroup")

    def cmdline(self, pid: int) -> str:
        return self.under_root(f"/proc/{pid}/cmdline")

    def unit(self, name: str) -> str:
        return self.under_root(f"/etc/systemd/system/{name}")

    @property
    def fuse_conf(self) -> str:
        return self.under_root("/etc/fuse.conf")

    @property
    def efs_state(self) -> str:
        """Directory in which efs-utils keeps one file a TLS mount: <fs-id>.<path with dots>.<port>."""
        return self.under_root("/var/run/efs")

    @property
    def uptime(self) -> str:
        return self.under_root("/proc/uptime")

    # HyperPod's
    @property
    def resource_config(self) -> str:
        return self.under_root("/opt/ml/config/resource_config.json")

    @property
    def provisioning_parameters(self) -> str:
        """What the cluster was created with, where HyperPod keeps it."""
        return self.under_root("/opt/ml/config/provisioning_parameters.json")

    @property
    def slurm_conf(self) -> str:
        return self.under_root("/opt/slurm/etc/slurm.conf")

    @property
    def plugstack_conf(self) -> str:
        return self.under_root("/opt/slurm/etc/plugstack.conf")

    @property
    def hyperpod_node_directory(self) -> str:
        """Directory that HyperPod's nodes have."""
        return self.under_root(hyperpod.NODE_DIRECTORY)

    @property
    def fetched_slurm_conf(self) -> str:
        """The slurm.conf that slurmd has fetched from the controller (configless), by which all Slurm commands of
        its node go."""
        return self.under_root("/run/slurm/conf/slurm.conf")

    @property
    def scontrol(self) -> str:
        return self.under_root("/opt/slurm/bin/scontrol")
