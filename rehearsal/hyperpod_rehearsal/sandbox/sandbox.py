"""Tier without root: a bundle's entry script under a temporary directory, its commands recorded instead of run."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Tuple

from hyperpod_kit.environment import HPK_NODE_ADDRESS, HPK_ROOT
from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.sandbox import sandbox_root

DEADLINE = 300.0
NOT_EXERCISED = (
    "mounts: no file system was mounted; EFS, Lustre and Mountpoint clients were not run",
    "systemd: units were read, not run by systemd; no timer fired, nothing was restarted, no boot order was kept",
    "Slurm and munge: no daemon ran; the answers of scontrol were made up; the SPANK plugin was not compiled",
    "users and permissions: nothing ran as root or as another user",
    "network and names: no name was resolved, no other node was reached",
    "S3: the bundle was not uploaded or downloaded; paths below /tmp/<bucket> were not used",
    "replacement, reboot and mount faults: a sandbox has no life after creation",
)


@dataclass(frozen=True)
class RoleRun:
    """The script on one kind of node. `commands`: what was recorded; `log`: lines of the provisioning log."""

    role: str
    group: str
    exit_code: int
    output: str
    commands: Tuple[Tuple[str, ...], ...]
    log: Tuple[str, ...]


@dataclass(frozen=True)
class SandboxResult:
    """`root`: where the temporary roots are kept, "" when they were removed."""

    script: str
    bundle_id: str
    runs: Tuple[RoleRun, ...]
    root: str = ""
    not_exercised: Tuple[str, ...] = NOT_EXERCISED

    @property
    def exit_code(self) -> int:
        """0 when the script exited 0 on every kind of node."""
        return max(run.exit_code for run in self.runs)


def run_sandbox(config: str, keep: bool = False) -> SandboxResult:
    """Render the bundle of a configuration and run its entry script once per role.

    Raises ConfigError, BundleError, or RehearsalError when there is no entry script or it does not end in time.
    """
    from hyperpod_kit.bundle import render as rendering
    from hyperpod_kit.config.load import load

    settings = load(Path(config))
    if not settings.entry_script:
        raise RehearsalError("lifecycle mode ami_only has no script of ours to run")
    bundle = rendering.render(settings)
    cluster = sandbox_root.cluster_from_spec(settings.cluster)
    work = Path(tempfile.mkdtemp(prefix="hyperpod-kit-sandbox-"))
    try:
        rendering.replace_bundle_directory(bundle, work / "bundle")
        runs = [
            _run_script_for_role(work, settings.entry_script, cluster, node)
            for node in _first_node_of_each_role(cluster)
        ]
    finally:
        if not keep:
            by_descriptor.remove_tree(work, ignore_errors=True)
    return SandboxResult(settings.entry_script, bundle.bundle_id, tuple(runs), str(work) if keep else "")


def _first_node_of_each_role(cluster: RehearsedCluster) -> List[RehearsedNode]:
    by_role: Dict[str, RehearsedNode] = {}
    for node in cluster.nodes.values():
        by_role.setdefault(node.role, node)
    return list(by_role.values())


def _run_script_for_role(work: Path, script: str, cluster: RehearsedCluster, node: RehearsedNode) -> RoleRun:
    directory = work / node.role.lower()
    by_descriptor.make_directory(directory)
    shims, root = sandbox_root.build_sandbox_shims_and_root(directory, cluster, node)
    environment = {
        "PATH": f"{shims}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(root / "home"),
        "LC_ALL": "C",
        "TMPDIR": str(root / "tmp"),
        HPK_ROOT: str(root),
        HPK_NODE_ADDRESS: node.ip,
        "SAGEMAKER_RESOURCE_CONFIG_PATH": str(root / "opt/ml/config/resource_config.json"),
    }
    try:
        done = subprocess.run(
            ["/bin/bash", script],
            cwd=work / "bundle",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DEADLINE,
        )
    except subprocess.TimeoutExpired as err:
        raise RehearsalError(f"{script} on a {node.role.lower()} node did not end within {DEADLINE:.0f} s") from err
    return RoleRun(
        node.role.lower(),
        node.group,
        done.returncode,
        done.stdout.strip(),
        tuple(_parse_recorded_command(line, root) for line in _read_lines(root / "sandbox/commands.jsonl")),
        tuple(_read_lines(root / "var/log/provision/provisioning.log")),
    )


def _parse_recorded_command(line: str, root: Path) -> Tuple[str, ...]:
    return tuple(word.replace(str(root), "") for word in json.loads(line))


def is_read_only_command(command: Tuple[str, ...]) -> bool:
    """Return whether a recorded command only queries and would have changed nothing."""
    queries = {
        "systemctl": ("is-enabled", "is-active", "show", "status"),
        "getent": (),
        "scontrol": ("ping", "show", "--oneliner", "--version", "-o"),
        "sinfo": (),
        "journalctl": (),
    }
    verbs = queries.get(command[0])
    return verbs is not None and (not verbs or (len(command) > 1 and command[1] in verbs))


def _read_lines(path: Path) -> List[str]:
    if os.path.exists(path):
        return path.read_text(errors="replace").splitlines()
    return []
