"""The lifecycle scripts that a cluster had before -> what becomes of each: done by us, kept as a script, or lost.

AWS's own set (base-config of awsome-distributed-training, as of 2026-02) is known by the names of its files; which of
them it runs is what its config.py says. Any other set is kept whole, as one script.
"""

from __future__ import annotations

import ast
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence

from hyperpod_kit.model.scripts import AFTER_MOUNTS, AFTER_SLURM, BEFORE_MOUNTS, ROLE
from hyperpod_kit.model.states import ROLES, Role

AWS_MAIN = "lifecycle_script.py"
FLAGS_FILE = "config.py"
USERS_FILE = "shared_users.txt"
PARAMETERS = "provisioning_parameters.json"
READ = (FLAGS_FILE, USERS_FILE)
"""Files whose contents say something; of the others the names do."""

STEPS = "hyperpod_kit.steps"
_DONE: Mapping[str, str] = {
    "on_create.sh": "the bundle's own script",
    AWS_MAIN: "the bundle's own steps",
    PARAMETERS: "this configuration",
    FLAGS_FILE: "what its flags say is in this list",
    "start_slurm.sh": "hyperpod_kit.cluster.lifecycle_mode",
    "mount_fsx.sh": "hyperpod_kit.mounts, kind lustre",
    "mount_fsx_openzfs.sh": "hyperpod_kit.mounts, kind openzfs",
    "utils/mount-s3.sh": "hyperpod_kit.mounts, kind mountpoint-s3",
    "utils/fsx_auto_detect.sh": "hyperpod_kit.mounts, which knows mounts that HyperPod made",
    "add_users.sh": "hyperpod_kit.users",
    USERS_FILE: "hyperpod_kit.users",
    "shared_users_sample.txt": "an example, no more",
    "hotfix/hold-lustre-client.sh": "the step `clients`",
    "setup_mariadb_accounting.sh": f"{STEPS}.accounting",
    "utils/enable_slurm_log_rotation.sh": f"{STEPS}.log_rotation",
    "setup_rds_accounting.sh": f"{STEPS}.accounting.database",
    "setup_user_associations.sh": f"{STEPS}.accounting.accounts",
    "utils/gen-keypair-ubuntu.sh": f"{STEPS}.ssh_between_nodes",
    "utils/ssh-to-compute.sh": f"{STEPS}.ssh_between_nodes",
    "utils/motd.sh": f"{STEPS}.login_message",
    "utils/motd.txt": f"{STEPS}.login_message",
    "utils/install_docker.sh": f"{STEPS}.docker, with NVIDIA's runtime where the image has it",
    "utils/pam_adopt_cgroup_wheel.sh": f"{STEPS}.pam_slurm_adopt; Slurm's limits of memory stay as they are",
    "multi_headnode_setup/headnode_setup.sh": "two nodes in the controller's group; its accounting is lost (HPK-G022)",
    "observability/install_node_exporter.sh": f"{STEPS}.node_exporter",
    "observability/install_slurm_exporter.sh": f"{STEPS}.node_exporter, on the controller",
}
_LOST: Mapping[str, str] = {
    "multi_headnode_setup/": "nobody is told of a failover; SlurmctldPrimaryOnProg of a script of yours can",
    "observability/": "list observability/ itself as the path of a script, and install_observability.py as its run",
}
_PARTS = {
    "utils/enroot.conf": "utils/install_enroot_pyxis.sh",
    "hotfix/": "apply_hotfix.sh",
}
"""What a script of the set uses; it goes where that goes."""


@dataclass(frozen=True)
class _AwsScript:
    """A script of AWS's set that we have no step for. `told_role`: the role is its last argument; `below`: it fails
    where nothing is mounted there."""

    name: str
    run: str
    when: str = AFTER_SLURM
    roles: Sequence[str] = ROLES
    arguments: Sequence[str] = ()
    told_role: bool = False
    flag: str = ""
    timeout: int = 60
    below: str = ""

    def entry_of_scripts(self, path: str) -> dict[str, Any]:
        """Make its entry of `hyperpod_kit.scripts`."""
        entry: dict[str, Any] = {"name": self.name, "path": path, "run": self.run}
        arguments = [*self.arguments]
        if self.told_role:
            arguments.append(ROLE)
        if arguments:
            entry["arguments"] = arguments
        entry["when"] = self.when
        if tuple(self.roles) != tuple(ROLES):
            entry["roles"] = [str(role) for role in self.roles]
        return {**entry, "timeout": self.timeout}


_EXPORTERS = "enable_observability"
_OFF = (_EXPORTERS,)
"""Switches that are off where config.py does not say."""
_CONTAINERS = "enable_docker_enroot_pyxis"
_KEPT = (
    _AwsScript("ansible", "utils/install_ansible.sh", BEFORE_MOUNTS, timeout=180),
    _AwsScript("hotfix", "apply_hotfix.sh", BEFORE_MOUNTS, told_role=True, timeout=180),
    _AwsScript("ubuntu-home", "utils/fsx_ubuntu.sh", AFTER_MOUNTS, arguments=("0",), below="/fsx"),
    _AwsScript("enroot", "utils/install_enroot_pyxis.sh", told_role=True, flag=_CONTAINERS, timeout=300),
    _AwsScript(
        "neuron", "utils/update_neuron_sdk.sh", roles=(Role.COMPUTE,), flag="enable_update_neuron_sdk", timeout=300
    ),
    _AwsScript("sssd", "setup_sssd.py", arguments=("--node-type",), told_role=True, flag="enable_sssd", timeout=180),
    _AwsScript("plugstack", "utils/slurm_fix_plugstackconf.sh", flag="enable_pam_slurm_adopt"),
)
"""In the order in which AWS's lifecycle_script.py starts them."""


@dataclass(frozen=True)
class _Step:
    """An optional step of ours that does what a script of AWS's set did, where config.py has not turned it off."""

    key: str
    run: str
    values: Mapping[str, Any] = field(default_factory=dict)
    flag: str = ""


_STEPS = (
    _Step("accounting", "setup_mariadb_accounting.sh"),
    _Step("log_rotation", "utils/enable_slurm_log_rotation.sh", {"keep": 2}, "enable_slurm_log_rotation"),
    _Step("login_message", "utils/motd.sh"),
    _Step("ssh_between_nodes", "utils/ssh-to-compute.sh"),
    _Step("docker", "utils/install_docker.sh", flag=_CONTAINERS),
    _Step("pam_slurm_adopt", "utils/pam_adopt_cgroup_wheel.sh", flag="enable_pam_slurm_adopt"),
    _Step("node_exporter", "observability/install_node_exporter.sh", flag=_EXPORTERS),
)


_INSTEAD: Mapping[str, str] = {
    "setup_sssd.py": f"{STEPS}.sssd does it, with the password in a secret and not scrambled in {FLAGS_FILE}",
}
"""What could take a script's place once somebody has said more than the script does."""


@dataclass(frozen=True)
class LegacyScripts:
    """`lines`: one for each file; `scripts`, `users`, `steps`: of the configuration; `notes`: what they do not say;
    `below`: of a script that is of no use without a mount there, the mount's path."""

    lines: tuple[str, ...]
    scripts: tuple[dict[str, Any], ...] = ()
    users: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = field(default=())
    steps: Mapping[str, Any] = field(default_factory=dict)
    below: Mapping[str, str] = field(default_factory=dict)


def classify_scripts(
    paths: Sequence[str], contents: Mapping[str, bytes], kept_at: Optional[str], entry_script: str = ""
) -> LegacyScripts:
    """Say what becomes of the files at `paths`. Pure.

    contents: of those in READ that there are; kept_at: the directory beside the configuration in which they lie, None
    when they are not kept; entry: the script that HyperPod starts.
    """
    if AWS_MAIN not in paths:
        return _classify_foreign_scripts(paths, kept_at, entry_script or "on_create.sh")
    flags = _parse_config_flags(contents.get(FLAGS_FILE, b""))
    kept_scripts = {script.run: script for script in _KEPT}
    lines: list[str] = []
    scripts: list[dict[str, Any]] = []
    for path in sorted(paths):
        lines.append(f"{path}: {_describe_outcome(path, flags, kept_scripts, kept_at)}")
    for script in _KEPT:
        if script.run in paths and flags.get(script.flag, True) and kept_at is not None:
            scripts.append(script.entry_of_scripts(kept_at))
    users, notes = _parse_shared_users(contents.get(USERS_FILE, b""))
    steps = {
        step.key: dict(step.values)
        for step in _STEPS
        if step.run in paths and flags.get(step.flag, step.flag not in _OFF)
    }
    below = {script.name: script.below for script in _KEPT if script.below}
    return LegacyScripts(tuple(lines), tuple(scripts), users, notes, steps, below)


def _describe_outcome(
    path: str, flags: Mapping[str, bool], kept_scripts: Mapping[str, _AwsScript], kept_at: Optional[str]
) -> str:
    step = next((candidate for candidate in _STEPS if candidate.run == path), None)
    if step and not flags.get(step.flag, step.flag not in _OFF):
        return f"not run: {step.flag} is off in {FLAGS_FILE}; here it is {STEPS}.{step.key}"
    if _is_below_slash_ended_directory(path, "observability/") and not flags.get(_EXPORTERS, _EXPORTERS not in _OFF):
        return f"not run: {_EXPORTERS} is off in {FLAGS_FILE}"
    if path in _DONE:
        return f"done by {_DONE[path]}"
    part_of = next(
        (
            script_name
            for part, script_name in _PARTS.items()
            if path == part or _is_below_slash_ended_directory(path, part)
        ),
        "",
    )
    if part_of:
        return f"goes with {part_of}"
    lost = next(
        (reason for where, reason in _LOST.items() if path == where or _is_below_slash_ended_directory(path, where)), ""
    )
    if lost:
        return f"lost: {lost}"
    if path not in kept_scripts:
        return "lost: no file of AWS's set; list it under hyperpod_kit.scripts if a node is to run it"
    script = kept_scripts[path]
    if not flags.get(script.flag, True):
        return f"not run: {script.flag} is off in {FLAGS_FILE}"
    if kept_at is None:
        return "lost, unless it is kept as a script of yours: --scripts DIR"
    instead = ""
    if path in _INSTEAD:
        instead = f"; {_INSTEAD[path]}"
    return f"kept as your script `{script.name}`{instead}"


def _is_below_slash_ended_directory(path: str, directory: str) -> bool:
    return directory.endswith("/") and path.startswith(directory)


def _classify_foreign_scripts(paths: Sequence[str], kept_at: Optional[str], entry_script: str) -> LegacyScripts:
    """A set of somebody's own: what it does beside our steps only its author knows."""
    remaining = [path for path in sorted(paths) if path != PARAMETERS]
    parameters_line = (f"{PARAMETERS}: done by {_DONE[PARAMETERS]}",) if PARAMETERS in paths else ()
    if kept_at is None or entry_script not in paths:
        if entry_script in paths:
            reason = "--scripts DIR keeps all of them"
        else:
            reason = f"there is no {entry_script} among them"
        return LegacyScripts((*parameters_line, *(f"{path}: lost: {reason}" for path in remaining)))
    script = {"name": "earlier", "path": kept_at, "run": entry_script, "when": AFTER_MOUNTS, "timeout": 900}
    note = (
        f"{entry_script} runs whole behind the mounts: take out of it what the bundle does now (mounts, users, Slurm)"
    )
    kept = tuple(f"{path}: kept, of your script `earlier`" for path in remaining)
    return LegacyScripts((*parameters_line, *kept), (script,), (), (note,))


def _parse_config_flags(config_py: bytes) -> dict[str, bool]:
    """Return the boolean switches of AWS's class Config. The file is parsed as Python, and is not run."""
    try:
        tree = ast.parse(config_py)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    flags = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            for line in node.body:
                if (
                    isinstance(line, ast.Assign)
                    and isinstance(line.targets[0], ast.Name)
                    and isinstance(line.value, ast.Constant)
                    and isinstance(line.value.value, bool)
                ):
                    flags[line.targets[0].id] = line.value.value
    return flags


def _parse_shared_users(shared_users_txt: bytes) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """Parse AWS's lines `name,uid,home`; return users and notes.

    Each user gets the gid of the same number, as useradd gives it where it is free.
    """
    users, notes = [], []
    for number, line in enumerate(shared_users_txt.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [part.strip() for part in line.split(",")]
        if len(fields) < 2 or not re.fullmatch(r"[0-9]{1,9}", fields[1]):
            notes.append(f"line {number} of {USERS_FILE}: expected name,uid,home")
            continue
        name, uid = fields[0], int(fields[1])
        users.append({"name": name, "uid": uid, "gid": uid})
        if len(fields) > 2 and fields[2]:
            home = posixpath.normpath(fields[2])
        else:
            home = f"/home/{name}"
        if home != f"/home/{name}":
            notes.append(f"the home {home} of {name}: here it is /home/{name}, or an access point of EFS (`homes`)")
    if users:
        notes.append(f"gids of {USERS_FILE}: it has none, so each user gets the one of its uid: compare with `id`")
    return tuple(users), tuple(notes)
