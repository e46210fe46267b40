"""The files that make a root directory this node: names, keys, credentials, what HyperPod puts under /opt/ml."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.agent import config_agent
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.platform.cluster_state import REGION

AGENT_STATUS = "/var/lib/hyperpod-rehearsal/agent.json"
AGENT_CONFIG = "/etc/hyperpod-rehearsal/node.json"
PROVISION_LOG = "/var/log/provision/provisioning.log"
PROVISIONING_PARAMETERS = "/opt/ml/config/provisioning_parameters.json"
RESOURCE_CONFIG = "/opt/ml/config/resource_config.json"
SLURM_CONF = "/opt/slurm/etc/slurm.conf"
CGROUP_CONF = "/opt/slurm/etc/cgroup.conf"
RENDERED_SLURM_CONF = f"{config_agent.RENDERED}/slurm.conf"
AGENT_SETTINGS = f"{config_agent.RENDERED}/agent.json"
NODE_PATH = "/opt/slurm/bin:/opt/slurm/sbin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SLURMD_DROP_IN = "/etc/systemd/system/slurmd.service.d/rehearsal-cgroup.conf"
WRITABLE_FREEZER = """\
# systemd-nspawn mounts the machine's own group of cgroup v1 read-only; slurmd makes a group in it for each step.
[Service]
ExecStartPre=/bin/sh -c '! [ -d /sys/fs/cgroup/freezer ] || mount -o remount,bind,rw /sys/fs/cgroup/freezer'
"""


@dataclass(frozen=True)
class NodeSecrets:
    """What the control plane hands to every node of a rehearsal. `authorized_key`: one line; `key`: their role's."""

    authorized_key: str
    munge_key: bytes
    key: Key


def write_node_file(
    root: Path, path: str, data: str | bytes, mode: int = 0o644, owner: Optional[Tuple[int, int]] = None
) -> None:
    """Replace a file of a node, atomically, through its root directory on the host.

    A running program of the node never sees half a file; a symbolic link in the way is replaced, not followed.
    """
    target = root / path.lstrip("/")
    by_descriptor.make_parents(target)
    atomic_file.write_atomically(target, data if isinstance(data, bytes) else data.encode(), mode, owner=owner)


def within_slurm(root: Path, path: str) -> str:
    """A path of a node below /opt/slurm by the tree to which that leads now: on this host an absolute link would lead
    to this host's own /opt."""
    link = root / "opt/slurm"
    if not link.is_symlink():
        return path
    return path.replace("/opt/slurm/", f"/opt/{Path(os.readlink(link)).name}/", 1)


def _read_user_ids(root: Path, user: str) -> Tuple[int, int]:
    for line in (root / "etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == user:
            return int(fields[2]), int(fields[3])
    raise KeyError(user)


def _render_aws_config(endpoint: str, key: Key) -> str:
    return (
        f"[default]\nregion = {REGION}\nendpoint_url = {endpoint}\naws_access_key_id = {key.id}\n"
        f"aws_secret_access_key = {key.secret}\naws_session_token = {key.token}\n"
        "s3 =\n  addressing_style = path\n"
    )


def aws_environment(endpoint: str, key: Key) -> Dict[str, str]:
    """Return the variables that point AWS's tools at the rehearsal's endpoint."""
    # The token also where it is empty: one that the shell has of another account would be sent with our key.
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": key.id,
        "AWS_SECRET_ACCESS_KEY": key.secret,
        "AWS_SESSION_TOKEN": key.token,
    }


def write_preboot_node_files(
    root: Path,
    *,
    host: str,
    ip: str,
    gateway: str,
    endpoint: str,
    secrets: NodeSecrets,
    host_key: str,
    agent_config: Dict[str, Any],
) -> None:
    """Write all files that a node has before it boots: names, network, credentials and keys.

    `host_key`: private ssh host key; `agent_config`: content of the agent's node.json.
    """
    write_node_file(root, "/etc/hostname", f"{host}\n")
    write_node_file(root, "/etc/hosts", f"127.0.0.1 localhost\n{ip} {host}.ec2.internal {host}\n")
    write_node_file(
        root, "/etc/resolv.conf", f"search ec2.internal\nnameserver {gateway}\noptions timeout:1 attempts:2\n"
    )
    environment = aws_environment(endpoint, secrets.key)
    assignments = " ".join(f'"{key}={value}"' for key, value in environment.items())
    # At a reboot PID 1 waits so long for each process that came in from outside: such a one is no child of its.
    write_node_file(
        root,
        "/etc/systemd/system.conf.d/rehearsal.conf",
        f"[Manager]\nDefaultEnvironment={assignments}\nDefaultTimeoutStopSec=15s\n",
    )
    write_node_file(
        root,
        "/etc/environment",
        "".join(f"{key}={value}\n" for key, value in environment.items()) + f"PATH={NODE_PATH}\n",
    )
    config = _render_aws_config(endpoint, secrets.key)
    write_node_file(root, "/root/.aws/config", config, 0o600)
    ubuntu = _read_user_ids(root, "ubuntu")
    write_node_file(root, "/home/ubuntu/.aws/config", config, 0o600, ubuntu)
    by_descriptor.set_owner(root / "home/ubuntu/.aws", *ubuntu)
    write_node_file(root, "/root/.ssh/authorized_keys", secrets.authorized_key, 0o600)
    by_descriptor.set_mode(root / "root/.ssh", 0o700)
    write_node_file(root, "/etc/ssh/ssh_host_ed25519_key", host_key, 0o600)
    write_node_file(root, "/etc/munge/munge.key", secrets.munge_key, 0o400, _read_user_ids(root, "munge"))
    write_node_file(root, AGENT_CONFIG, json.dumps(agent_config, indent=1) + "\n")
