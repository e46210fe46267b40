"""Nodes of clusters made into machines: launched, watched until their scripts have run, rebooted, removed."""

from __future__ import annotations

import json
import secrets as random_secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Optional, Set

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.model.instance_types import has_instance_store
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.agent import config_agent
from hyperpod_rehearsal.machines import cgroups
from hyperpod_rehearsal.machines.machine import Machines
from hyperpod_rehearsal.machines.network import Network
from hyperpod_rehearsal.metadata.instance_metadata import InstanceIdentity
from hyperpod_rehearsal.metadata.metadata_server import MetadataServers
from hyperpod_rehearsal.platform import host_keys, node_files, resource_config, slurm_conf
from hyperpod_rehearsal.platform.cluster_state import (
    ACCOUNT,
    CONTROLLER,
    REGION,
    RehearsedCluster,
    RehearsedNode,
    is_spot,
)
from hyperpod_rehearsal.platform.node_files import NodeSecrets
from hyperpod_rehearsal.records.layout import Layout
from hyperpod_rehearsal.records.profiles import BY_CGROUP
from hyperpod_rehearsal.records.settings import RehearsalSettings

BOOT_DEADLINE = 120.0
"""Seconds in which a machine's agent must have reported for the first time."""


class CreationFailed(RehearsalError):
    """A node did not come up; the message says why, with the end of the script's log."""


def new_instance_id() -> str:
    """An id in EC2's form."""
    return "i-" + random_secrets.token_hex(9)[:17]


@dataclass
class Fleet:
    """`endpoint`: URL of S3 and SageMaker as nodes reach it. `stopping` ends every wait."""

    layout: Layout
    settings: RehearsalSettings
    network: Network
    metadata: MetadataServers
    machines: Machines
    secrets: NodeSecrets
    endpoint: str
    stopping: threading.Event

    def __post_init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: Dict[str, threading.Lock] = {}
        self._removed_ids: Set[str] = set()
        self._keys = host_keys.HostKeys(self.layout.known_hosts)

    def _get_or_create_instance_lock(self, instance_id: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(instance_id, threading.Lock())

    def _require_not_removed(self, node: RehearsedNode) -> None:
        """Raise RehearsalError when the node was removed or the rehearsal stops: it must not be started again."""
        if node.instance_id in self._removed_ids or self.stopping.is_set():
            raise RehearsalError(f"{node.instance_id} was removed")

    def launch(self, cluster: RehearsedCluster, node: RehearsedNode, memory_mb: int) -> None:
        """Make a node's machine and boot it. Raises RehearsalError or RunError; the node may have been removed."""
        with self._get_or_create_instance_lock(node.instance_id):
            self._require_not_removed(node)
            self.network.create_node_namespace_and_link(node.instance_id, node.ip)
            self.metadata.start(
                self.layout.netns(node.instance_id),
                InstanceIdentity(
                    node.instance_id,
                    node.instance_type,
                    node.ip,
                    node.host,
                    REGION,
                    ACCOUNT,
                    cluster.group(node.group).get("ExecutionRole", ""),
                    self.secrets.key.id,
                    self.secrets.key.secret,
                    self.secrets.key.token,
                    is_spot=is_spot(cluster.group(node.group)),
                ),
            )
            self._mount_root_and_write_node_files(cluster, node, memory_mb)
            self._boot(node)

    def reimage(self, cluster: RehearsedCluster, node: RehearsedNode, memory_mb: int) -> None:
        """Boot the same instance from a fresh root. Raises RehearsalError or RunError."""
        with self._get_or_create_instance_lock(node.instance_id):
            self._require_not_removed(node)
            self.machines.remove(node.instance_id)
            self._mount_root_and_write_node_files(cluster, node, memory_mb)
            self._boot(node)

    def _mount_root_and_write_node_files(self, cluster: RehearsedCluster, node: RehearsedNode, memory_mb: int) -> None:
        """A fresh root with all that a node has before its first boot."""
        root = self.machines.mount_overlay_root(node.instance_id)
        group, controller = cluster.group(node.group), cluster.controller
        node_files.write_preboot_node_files(
            root,
            host=node.host,
            ip=node.ip,
            gateway=self.network.gateway,
            endpoint=self.endpoint,
            secrets=self.secrets,
            host_key=self._keys.generate_and_record_host_key(node.ip, node.host),
            agent_config={
                "instance_id": node.instance_id,
                "endpoint": self.endpoint,
                "lifecycle": group.get("LifeCycleConfig") or {},
                "slurm_role": node.role,
                "storage": group.get("InstanceStorageConfigs") or [],
                "controller_ip": controller.ip if controller else "",
                "role": group.get("ExecutionRole", ""),
                "timeout": self.settings.creation_timeout,
                "step_retry": self.settings.profile.step_retry,
            },
        )
        node_files.write_node_file(
            root, node_files.RESOURCE_CONFIG, resource_config.render_resource_config_json(cluster)
        )
        if any(entry.get("SlurmConfig") for entry in cluster.groups):
            node_files.write_node_file(
                root,
                node_files.PROVISIONING_PARAMETERS,
                json.dumps(slurm_conf.provisioning_parameters_for(cluster), indent=1) + "\n",
            )
        if self.settings.profile.tracking == BY_CGROUP:
            node_files.write_node_file(root, node_files.SLURMD_DROP_IN, node_files.WRITABLE_FREEZER)
        if node.role == CONTROLLER:
            text = self._render_slurm_conf(cluster, memory_mb)
            node_files.write_node_file(root, node_files.within_slurm(root, node_files.SLURM_CONF), text)
            self._write_agent_files(root, cluster, text)
            kinds = {hierarchy.kind for hierarchy in cgroups.mounted_hierarchies()}
            untracked = cgroups.systemd_requires_cgroup_v2(self.layout.image_mount_point) and kinds != {"v2"}
            conf = slurm_conf.render_cgroup_conf(
                self.settings.profile, has_v1_freezer="freezer" in kinds, v2_only_nodes_on_mixed_host=untracked
            )
            if conf:
                node_files.write_node_file(root, node_files.within_slurm(root, node_files.CGROUP_CONF), conf)
            by_descriptor.make_directories(root / "var/spool/slurmctld", shared=True)

    def _render_slurm_conf(self, cluster: RehearsedCluster, memory_mb: int) -> str:
        settings = self.settings
        return slurm_conf.render_slurm_conf(
            cluster, memory_mb, settings.cred_expire, settings.slurmd_timeout, settings.profile
        )

    def _write_agent_files(self, root: Path, cluster: RehearsedCluster, slurm_conf_text: str) -> None:
        """What HyperPod's agent on the controller is to keep, where the profile has that agent."""
        if not self.settings.profile.agents:
            return
        node_files.write_node_file(root, node_files.RENDERED_SLURM_CONF, slurm_conf_text)
        for name, text in slurm_conf.render_agent_files(cluster).items():
            node_files.write_node_file(root, f"{config_agent.RENDERED}/{name}", text)
            if name in config_agent.TOPOLOGY:
                place = node_files.within_slurm(root, f"{config_agent.SLURM_ETC}/{name}")
                node_files.write_node_file(root, place, text)

    def _boot(self, node: RehearsedNode) -> None:
        node.booted_at = time.time()
        process = self.machines.start(node.instance_id, node.host, has_instance_store(node.instance_type))
        node.pid, node.pid_started = process.pid, process.started

    def restart(self, node: RehearsedNode) -> None:
        """Boot the same instance again over its own disk. Raises RehearsalError."""
        with self._get_or_create_instance_lock(node.instance_id):
            self._require_not_removed(node)
            self.machines.kill(node.instance_id)
            with suppress(OSError):
                # What the agent said of the last boot is no news of this one; its "Running" must stay, though.
                path = self.machines.root(node.instance_id) / node_files.AGENT_STATUS.lstrip("/")
                data = json.loads(path.read_text())
                node_files.write_node_file(
                    self.machines.root(node.instance_id), node_files.AGENT_STATUS, json.dumps({**data, "at": 0.0})
                )
            self._boot(node)

    def remove(self, node: RehearsedNode) -> None:
        """End a node's machine and remove all of it; repeatable."""
        with self._get_or_create_instance_lock(node.instance_id):
            self._removed_ids.add(node.instance_id)
            self.machines.remove(node.instance_id)
            self.metadata.stop(node.instance_id)
            self.network.remove_node_namespace_and_link(node.instance_id)

    def read_agent_report(self, node: RehearsedNode) -> tuple[str, str]:
        """Return (state, message) of the agent since this boot; ("", "") before its first report."""
        path = self.machines.root(node.instance_id) / node_files.AGENT_STATUS.lstrip("/")
        try:
            data = json.loads(path.read_text())
            if data["at"] >= node.booted_at - 1:
                return (data["state"], data["message"])
            return ("", "")
        except (OSError, ValueError, KeyError):
            return "", ""

    def wait_until_created(self, node: RehearsedNode, is_desired: Callable[[], bool] = lambda: True) -> None:
        """Wait until the agent reports Running. Raises CreationFailed, also when `is_desired()` turns false."""
        booted = time.monotonic()
        while True:
            state, message = self.read_agent_report(node)
            if state == "Running":
                return
            if state == "Failed":
                raise CreationFailed(message)
            code = self.machines.exit_code(node.instance_id)
            if code is not None:
                raise CreationFailed(f"the machine ended with code {code}: {self._read_console_tail(node)}")
            waited = time.monotonic() - booted
            if not state and waited > BOOT_DEADLINE:
                raise CreationFailed(
                    f"no word from its agent in {BOOT_DEADLINE:.0f} s: {self._read_console_tail(node)}"
                )
            if waited > self.settings.creation_timeout + BOOT_DEADLINE:
                raise CreationFailed("its lifecycle script did not end in time")
            if not is_desired():
                raise CreationFailed("given up: the cluster no longer wants this node")
            if self.stopping.wait(0.1):
                raise CreationFailed("the rehearsal is shutting down")

    def _read_console_tail(self, node: RehearsedNode) -> str:
        try:
            text = (self.machines.directory(node.instance_id) / "console.log").read_text(errors="replace")
        except OSError:
            return "(no console)"
        return " / ".join(text.splitlines()[-5:]) or "(silent console)"

    def rewrite_cluster_configs(
        self, cluster: RehearsedCluster, memory_mb: int, skip: Optional[RehearsedNode] = None
    ) -> None:
        """Rewrite resource configs of running nodes but `skip`, and the controllers' slurm.conf node lines."""
        text = resource_config.render_resource_config_json(cluster)
        for node in list(cluster.nodes.values()):
            root = self.machines.root(node.instance_id)
            if node is skip or self.machines.exit_code(node.instance_id) is not None or not (root / "etc").is_dir():
                continue
            with suppress(OSError):
                node_files.write_node_file(root, node_files.RESOURCE_CONFIG, text)
                if node.role == CONTROLLER:
                    place = node_files.within_slurm(root, node_files.SLURM_CONF)
                    lines = slurm_conf.node_and_partition_lines(cluster, memory_mb, self.settings.profile)
                    merged = slurm_conf.replace_or_append_platform_lines((root / place.lstrip("/")).read_text(), lines)
                    self._write_agent_files(root, cluster, self._render_slurm_conf(cluster, memory_mb))
                    node_files.write_node_file(root, place, merged)
