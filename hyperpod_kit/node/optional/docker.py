"""Docker, with images and containers on the node's local disk where it has one.

daemon.json is shared: what an admin or the image has put there stays, and ours is added to it. What we added, and
whether Docker ran before we came, is kept in a note, for the day on which the step is off.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, List, Mapping

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.optional_steps import Docker
from hyperpod_kit.node.machine import deferred_actions, systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, write_if_different, write_json
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import local_disk, software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.node.setup.users import getent_entry
from hyperpod_kit.untrusted import by_descriptor

# Docker's own packages have the first path, Debian's and Ubuntu's the second.
DOCKER = Software(("/usr/bin/dockerd", "/usr/sbin/dockerd"), ("docker", "docker-ce"))
UNIT, SOCKET, CONTAINERD = "docker.service", "docker.socket", "containerd.service"
DAEMON = "/etc/docker/daemon.json"
NVIDIA = "/usr/bin/nvidia-container-runtime"
RESTART = "docker-restart"
GROUP = "docker"
# Docker 29 keeps images with containerd, whose place is no matter of daemon.json.
CONTAINERD_ROOT = """\
[Service]
ExecStart=
ExecStart=/usr/bin/containerd --root {place}/containerd
"""


def missing_settings(existing: Mapping[str, Any], directory: str, nvidia: bool) -> Dict[str, Any]:
    """Return the settings to add to daemon.json beside `existing`: only those that nobody has set yet."""
    added: Dict[str, Any] = {}
    if directory and "data-root" not in existing:
        added["data-root"] = f"{directory}/docker"
    if nvidia and "nvidia" not in existing.get("runtimes", {}):
        added["runtimes"] = {**existing.get("runtimes", {}), "nvidia": {"path": NVIDIA, "runtimeArgs": []}}
    return added


def _configuration(node: Node) -> Docker:
    docker = node.config.steps.docker
    assert docker is not None, "the step is on"
    return docker


def _read_change_note(node: Node) -> Dict[str, Any]:
    """Read the note of what the step changed. `ours`: settings that it added; `before`: whether Docker started
    at boot without it; `users`: put into its group."""
    raw = read_json(node.paths.optional_step_done_stamp(STEP.name))
    note: Dict[str, Any]
    if isinstance(raw, dict):
        note = raw
    else:
        note = {}
    return {"ours": {}, "users": [], **note}


def _read_daemon_settings(node: Node) -> Dict[str, Any]:
    text = read_text(node.paths.under_root(DAEMON))
    try:
        if text and text.strip():
            daemon_settings = json.loads(text)
        else:
            daemon_settings = {}
    except ValueError as err:
        raise NodeError(f"{DAEMON} is not JSON: {err}", hint="correct it: Docker does not start with it") from err
    if not isinstance(daemon_settings, dict) or not isinstance(daemon_settings.get("runtimes", {}), dict):
        raise NodeError(f"{DAEMON} is not a JSON object", hint="correct it: Docker does not start with it")
    return daemon_settings


def _foreign_daemon_settings(node: Node) -> Dict[str, Any]:
    """Return daemon.json without what the kit added."""
    existing = _read_daemon_settings(node)
    for key, value in _read_change_note(node)["ours"].items():
        if key == "runtimes":
            existing[key] = {name: runtime for name, runtime in existing.get(key, {}).items() if name != "nvidia"}
        elif existing.get(key) == value:
            del existing[key]
    return {key: value for key, value in existing.items() if value != {}}


def _settings_to_add(node: Node) -> Dict[str, Any]:
    return missing_settings(
        _foreign_daemon_settings(node),
        local_disk.find_local_disk_or_volume_path(node),
        os.path.exists(node.paths.under_root(NVIDIA)),
    )


def _expected_files(node: Node) -> Dict[str, str]:
    """Path -> text of each file. Raises NodeError."""
    directory = local_disk.find_local_disk_or_volume_path(node)
    merged = {**_foreign_daemon_settings(node), **_settings_to_add(node)}
    if merged:
        files = {node.paths.under_root(DAEMON): json.dumps(merged, indent=4) + "\n"}
    else:
        files = {}
    if directory:
        ordered = local_disk.ORDERED.format(place=directory)
        files[_drop_in_path(node, UNIT)] = ordered
        files[_drop_in_path(node, CONTAINERD)] = f"{ordered}\n{CONTAINERD_ROOT.format(place=directory)}"
    return files


def _drop_in_path(node: Node, unit: str) -> str:
    return node.paths.unit(f"{unit}.d/hyperpod-kit.conf")


def _outdated_file_paths(node: Node) -> List[str]:
    daemon = node.paths.under_root(DAEMON)
    outdated = []
    for path, text in _expected_files(node).items():
        if path == daemon:
            differs = _read_daemon_settings(node) != json.loads(text)
        else:
            differs = read_text(path) != text
        if differs:
            outdated.append(path)
    return outdated


def _users_missing_from_docker_group(node: Node) -> List[str]:
    """Return the configured users who are not in Docker's group yet, of those that this node knows."""
    group = getent_entry(node, "group", GROUP)
    members = []
    if group and len(group) > 3:
        members = group[3].split(",")
    return [
        name
        for name in _configuration(node).users
        if name not in members and getent_entry(node, "passwd", name) is not None
    ]


def _apply_docker(node: Node) -> StepOutcome:
    note = _read_change_note(node)
    if "before" not in note:
        note["before"] = systemd.is_enabled(node, UNIT)
        write_json(node.paths.optional_step_done_stamp(STEP.name), note)
    outdated, files, done = _outdated_file_paths(node), _expected_files(node), []
    if outdated:
        deferred_actions.record_action(node, RESTART)
        note["ours"] = _settings_to_add(node)
        write_json(node.paths.optional_step_done_stamp(STEP.name), note)
        # Before anything is installed: a package starts its daemon, which makes its directories at once.
        for path in outdated:
            write_if_different(path, files[path])
        done.append(f"wrote {', '.join(os.path.basename(path) for path in outdated)}")
    done.append(software.ensure_installed(node, DOCKER))
    joining = _users_missing_from_docker_group(node)
    if joining:
        note["users"] = sorted({*note["users"], *joining})
        write_json(node.paths.optional_step_done_stamp(STEP.name), note)
        for name in joining:
            node.runner.run(["usermod", "--append", "--groups", GROUP, name], timeout=30)
        done.append(f"{', '.join(joining)} may use it")
    if deferred_actions.is_recorded(node, RESTART) or systemd.needs_daemon_reload(node, [UNIT, CONTAINERD]):
        systemd.daemon_reload(node)
    systemd.enable(node, UNIT)
    try:
        if deferred_actions.is_recorded(node, RESTART):
            units = [unit for unit in (CONTAINERD, UNIT) if unit == UNIT or systemd.is_active(node, unit)]
            node.runner.run(["systemctl", "restart", *units], timeout=180)
            done.append("restarted it")
        elif systemd.start(node, UNIT, timeout=180):
            done.append("started it")
    except RunError as err:
        raise NodeError(
            f"Docker does not start: {systemd.last_log_line(node, UNIT) or err.message}", hint="journalctl -u docker"
        ) from err
    deferred_actions.delete_action_record(node, RESTART)
    summary = "; ".join(part for part in done if part)
    return StepOutcome(bool(summary), summary)


def _describe_pending_changes(node: Node) -> str:
    is_installed = software.find_program(node, DOCKER) is not None
    runs = is_installed and systemd.is_enabled(node, UNIT) and systemd.is_active(node, UNIT)
    outdated, joining = _outdated_file_paths(node), _users_missing_from_docker_group(node)
    parts = []
    if outdated:
        parts.append(f"write {', '.join(outdated)}")
    parts.append(software.describe_pending_install(node, DOCKER))
    if joining:
        parts.append(f"let {', '.join(joining)} use it")
    if not runs:
        parts.append(f"enable and start {UNIT}")
    if runs and deferred_actions.is_recorded(node, RESTART):
        parts.append(f"restart {UNIT}")
    return "; ".join(part for part in parts if part)


def _undo_docker(node: Node) -> str:
    note, existing = _read_change_note(node), _foreign_daemon_settings(node)
    if existing:
        write_if_different(node.paths.under_root(DAEMON), json.dumps(existing, indent=4) + "\n")
    unneeded = [_drop_in_path(node, UNIT), _drop_in_path(node, CONTAINERD)]
    if not existing:
        unneeded.append(node.paths.under_root(DAEMON))
    for path in unneeded:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(path)
    systemd.daemon_reload(node)
    for name in note["users"]:
        node.runner.run(["gpasswd", "--delete", name, GROUP], timeout=30, check=False)
    if note.get("before"):
        node.runner.run(["systemctl", "try-restart", CONTAINERD, UNIT], timeout=180, check=False)
        summary = "Docker has its previous configuration"
    else:
        resting = ["systemctl", "disable", "--now", "--quiet", UNIT, SOCKET]
        node.runner.run(resting, timeout=180, check=False)
        summary = "Docker is stopped; its images are kept"
    deferred_actions.delete_action_record(node, RESTART)
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.optional_step_done_stamp(STEP.name))
    return summary


STEP = OptionalStep("docker", _apply_docker, _describe_pending_changes, _undo_docker)
