"""systemd, as far as a node needs it: install units from the bundle, enable and start them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
from typing import Dict, List, Sequence

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different


def read_bundled_unit(node: Node, name: str) -> str:
    """Text of a unit as the bundle has it. Raises NodeError."""
    text = read_text(f"{node.paths.bundle}/units/{name}")
    if text is None:
        raise NodeError(f"units/{name} is not in the bundle", hint="hyperpod-kit upload with the same version")
    return text


def units_differing_from_bundle(node: Node, names: Sequence[str]) -> List[str]:
    """Those whose installed text is not the bundle's, or that are not installed. Raises NodeError."""
    return [name for name in names if read_text(node.paths.unit(name)) != read_bundled_unit(node, name)]


def install_and_enable_bundled_units(node: Node, names: Sequence[str], at_boot: Sequence[str]) -> bool:
    """Copy units of the bundle to /etc/systemd/system, enable those of `at_boot`, have all of it read.

    True when any was new, different or not enabled. One reload at the end: systemd 257 wants one after enabling too.
    """
    changed = units_differing_from_bundle(node, names)
    for name in changed:
        write_if_different(node.paths.unit(name), read_bundled_unit(node, name))
    enabled = enable(node, *at_boot)
    # systemd itself is asked: whoever wrote the files may have been killed before it told systemd.
    reloading = bool(changed) or enabled or needs_daemon_reload(node, names)
    if reloading:
        daemon_reload(node)
    return reloading


def needs_daemon_reload(node: Node, names: Sequence[str]) -> bool:
    """Whether systemd still goes by an older text of any of these units."""
    if not names:
        return False
    done = node.runner.run(["systemctl", "show", "--property", "NeedDaemonReload", *names], timeout=20, check=False)
    return "NeedDaemonReload=yes" in done.stdout.splitlines()


def daemon_reload(node: Node) -> None:
    node.runner.run(["systemctl", "daemon-reload"], timeout=60)


def is_enabled(node: Node, unit: str) -> bool:
    return node.runner.run(["systemctl", "is-enabled", "--quiet", unit], timeout=20, check=False).returncode == 0


def is_active(node: Node, unit: str) -> bool:
    return node.runner.run(["systemctl", "is-active", "--quiet", unit], timeout=20, check=False).returncode == 0


def enable(node: Node, *units: str) -> bool:
    """Make `units` start at boot; True when any did not before."""
    missing = [unit for unit in units if not is_enabled(node, unit)]
    if missing:
        # A reload for each unit is what takes a second each on a node that is just booting; links need none.
        node.runner.run(["systemctl", "enable", "--quiet", "--no-reload", *missing], timeout=30)
        # systemd 257 counts a new link among what it has not read yet, 252 does not.
        if needs_daemon_reload(node, missing):
            daemon_reload(node)
    return bool(missing)


def start(node: Node, *units: str, timeout: float) -> bool:
    """Start `units` and wait for them; True when any did not run before. Raises RunError."""
    resting = [unit for unit in units if not is_active(node, unit)]
    if resting:
        node.runner.run(["systemctl", "start", *resting], timeout=timeout)
    return bool(resting)


def filter_inactive(node: Node, units: Sequence[str]) -> List[str]:
    """Return those of `units` that neither run nor are being started; none where systemd does not answer."""
    if not units:
        return []
    done = node.runner.run(["systemctl", "is-active", *units], timeout=20, check=False)
    states = done.stdout.split()
    if len(states) != len(units):
        return []
    return [unit for unit, state in zip(units, states) if state in ("inactive", "failed")]


def has_failed(node: Node, unit: str) -> bool:
    """Return whether the last start of a unit, or what it ran, has failed."""
    return node.runner.run(["systemctl", "is-failed", "--quiet", unit], timeout=20, check=False).returncode == 0


def query_unit_properties(node: Node, unit: str, names: Sequence[str]) -> Dict[str, str]:
    """Query properties of a unit; what systemd does not print is missing from the result."""
    done = node.runner.run(["systemctl", "show", "--property", ",".join(names), unit], timeout=20, check=False)
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {name: value for name, separator, value in pairs if separator}


def process_ids_of_unit(node: Node, unit: str) -> List[int]:
    """Ids of the processes of a unit, its main process among them; empty when it does not run.

    Read from the kernel: a health check asks for every daemon, and `systemctl` costs ten times as much.
    """
    for tree in ("", "/unified", "/systemd"):  # one hierarchy, or what cgroup v1 has beside its controllers
        try:
            text = read_text(f"{node.paths.cgroups}{tree}/system.slice/{unit}/cgroup.procs")
        except OSError:  # ENODEV: the unit is just being stopped
            return []
        if text is not None:
            return [int(word) for word in text.split()]
    pid = int(query_unit_properties(node, unit, ["MainPID"]).get("MainPID") or 0)
    if pid:
        return [pid]
    return []


def last_log_line(node: Node, unit: str) -> str:
    """The last line that a process of the unit wrote, for an error message; "" when nobody can say."""
    try:
        done = node.runner.run(
            ["journalctl", "--unit", unit, "--lines", "20", "--output", "json", "--no-pager", "--quiet"],
            timeout=20,
            check=False,
        )
    except RunError:  # no journal is no reason to hide the first error
        return ""
    for line in reversed(done.stdout.splitlines()):
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            text = entry.get("MESSAGE")
            if entry.get("SYSLOG_IDENTIFIER") == "systemd" or not isinstance(text, str) or text.startswith("hint:"):
                continue
            if text.startswith("error: "):
                return text[len("error: ") :]
            return text.strip()
    return ""
