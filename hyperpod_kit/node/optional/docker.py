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
from hyperpod_kit.node import pending_work, systemd
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_json, read_text, write_if_different, write_json
from hyperpod_kit.node.optional import local_disk, software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.node.step import StepOutcome
from hyperpod_kit.node.users import entry
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


def settings(theirs: Mapping[str, Any], place: str, nvidia: bool) -> Dict[str, Any]:
    """What daemon.json is to say beside `theirs`: only what nobody has said yet."""
    ours: Dict[str, Any] = {}
    if place and "data-root" not in theirs:
        ours["data-root"] = f"{place}/docker"
    if nvidia and "nvidia" not in theirs.get("runtimes", {}):
        ours["runtimes"] = {**theirs.get("runtimes", {}), "nvidia": {"path": NVIDIA, "runtimeArgs": []}}
    return ours


def _asked(node: Node) -> Docker:
    asked = node.config.steps.docker
    assert asked is not None, "the step is on"
    return asked


def _note(node: Node) -> Dict[str, Any]:
    """`ours`: settings that we added; `before`: whether it started at boot without us; `users`: put into its group."""
    found = read_json(node.paths.optional_stamp(STEP.name))
    kept: Dict[str, Any] = found if isinstance(found, dict) else {}
    return {"ours": {}, "users": [], **kept}


def _daemon(node: Node) -> Dict[str, Any]:
    text = read_text(node.paths.real(DAEMON))
    try:
        said = json.loads(text) if text and text.strip() else {}
    except ValueError as err:
        raise NodeError(f"{DAEMON} is no JSON: {err}", hint="correct it: Docker does not start with it") from err
    if not isinstance(said, dict) or not isinstance(said.get("runtimes", {}), dict):
        raise NodeError(f"{DAEMON} is not an object of settings", hint="correct it: Docker does not start with it")
    return said


def _theirs(node: Node) -> Dict[str, Any]:
    """daemon.json without what we added."""
    said = _daemon(node)
    for key, value in _note(node)["ours"].items():
        if key == "runtimes":
            said[key] = {name: one for name, one in said.get(key, {}).items() if name != "nvidia"}
        elif said.get(key) == value:
            del said[key]
    return {key: value for key, value in said.items() if value != {}}


def _ours(node: Node) -> Dict[str, Any]:
    return settings(_theirs(node), local_disk.place(node), os.path.exists(node.paths.real(NVIDIA)))


def _wanted(node: Node) -> Dict[str, str]:
    """Path -> text of each file. Raises NodeError."""
    place = local_disk.place(node)
    said = {**_theirs(node), **_ours(node)}
    files = {node.paths.real(DAEMON): json.dumps(said, indent=4) + "\n"} if said else {}
    if place:
        ordered = local_disk.ORDERED.format(place=place)
        files[_drop_in(node, UNIT)] = ordered
        files[_drop_in(node, CONTAINERD)] = f"{ordered}\n{CONTAINERD_ROOT.format(place=place)}"
    return files


def _drop_in(node: Node, unit: str) -> str:
    return node.paths.unit(f"{unit}.d/hyperpod-kit.conf")


def _outdated(node: Node) -> List[str]:
    daemon = node.paths.real(DAEMON)
    return [
        path
        for path, text in _wanted(node).items()
        if (_daemon(node) != json.loads(text) if path == daemon else read_text(path) != text)
    ]


def _outside(node: Node) -> List[str]:
    """Users of ours who are not in its group yet, of those that this node knows."""
    group = entry(node, "group", GROUP)
    members = group[3].split(",") if group and len(group) > 3 else []
    return [name for name in _asked(node).users if name not in members and entry(node, "passwd", name) is not None]


def _run(node: Node) -> StepOutcome:
    note = _note(node)
    if "before" not in note:
        note["before"] = systemd.is_enabled(node, UNIT)
        write_json(node.paths.optional_stamp(STEP.name), note)
    outdated, files, done = _outdated(node), _wanted(node), []
    if outdated:
        pending_work.note(node, RESTART)
        note["ours"] = _ours(node)
        write_json(node.paths.optional_stamp(STEP.name), note)
        # Before anything is installed: a package starts its daemon, which makes its directories at once.
        for path in outdated:
            write_if_different(path, files[path])
        done.append(f"wrote {', '.join(os.path.basename(path) for path in outdated)}")
    done.append(software.ensure(node, DOCKER))
    joining = _outside(node)
    if joining:
        note["users"] = sorted({*note["users"], *joining})
        write_json(node.paths.optional_stamp(STEP.name), note)
        for name in joining:
            node.runner.run(["usermod", "--append", "--groups", GROUP, name], timeout=30)
        done.append(f"{', '.join(joining)} may use it")
    if pending_work.is_noted(node, RESTART) or systemd.must_reload(node, [UNIT, CONTAINERD]):
        systemd.reload(node)
    systemd.enable(node, UNIT)
    try:
        if pending_work.is_noted(node, RESTART):
            units = [unit for unit in (CONTAINERD, UNIT) if unit == UNIT or systemd.is_active(node, unit)]
            node.runner.run(["systemctl", "restart", *units], timeout=180)
            done.append("restarted it")
        elif systemd.start(node, UNIT, timeout=180):
            done.append("started it")
    except RunError as err:
        raise NodeError(
            f"Docker does not start: {systemd.last_words(node, UNIT) or err.message}", hint="journalctl -u docker"
        ) from err
    pending_work.settle(node, RESTART)
    said = "; ".join(word for word in done if word)
    return StepOutcome(bool(said), said)


def _pending(node: Node) -> str:
    there = software.found(node, DOCKER) is not None
    runs = there and systemd.is_enabled(node, UNIT) and systemd.is_active(node, UNIT)
    outdated, joining = _outdated(node), _outside(node)
    words = [
        f"write {', '.join(outdated)}" if outdated else "",
        software.pending(node, DOCKER),
        f"let {', '.join(joining)} use it" if joining else "",
        "" if runs else f"enable and start {UNIT}",
        f"restart {UNIT}" if runs and pending_work.is_noted(node, RESTART) else "",
    ]
    return "; ".join(word for word in words if word)


def _undo(node: Node) -> str:
    note, said = _note(node), _theirs(node)
    if said:
        write_if_different(node.paths.real(DAEMON), json.dumps(said, indent=4) + "\n")
    for path in (_drop_in(node, UNIT), _drop_in(node, CONTAINERD), *([] if said else [node.paths.real(DAEMON)])):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(path)
    systemd.reload(node)
    for name in note["users"]:
        node.runner.run(["gpasswd", "--delete", name, GROUP], timeout=30, check=False)
    if note.get("before"):
        node.runner.run(["systemctl", "try-restart", CONTAINERD, UNIT], timeout=180, check=False)
        words = "Docker is as it was before"
    else:
        resting = ["systemctl", "disable", "--now", "--quiet", UNIT, SOCKET]
        node.runner.run(resting, timeout=180, check=False)
        words = "Docker rests; its images stay"
    pending_work.settle(node, RESTART)
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.optional_stamp(STEP.name))
    return words


STEP = OptionalStep("docker", _run, _pending, _undo)
