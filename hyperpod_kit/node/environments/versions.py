"""The versions of a training environment in its directory, which all nodes may share.

    versions/<machine>-<digest>-<token>/   a version; it is complete once it has the file COMPLETE, written last
    <machine>                              a link to the version that new jobs get
    .lease-<machine>/                      which node makes one now (node/slurm/lease.py), and why the last one failed

The paths in an environment are those of its own directory, so a version is made where it stays and is never moved. Each
attempt has a directory of its own: two nodes that make one at once, or one that goes on after a pause, do not write
into the same version. What is complete is never removed here, since a job may use it.

All of this runs as the owner of the environment. Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import List, Sequence

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.run import Runner
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import clean_one_line

COMPLETE = ".hyperpod-kit-complete"
VERSIONS = "versions"
_REMOVED = ".removed-"
_NEW_LINK = ".link-"
_CHECK_SECONDS = 120.0
_TAIL_LINES, _TAIL_CHARACTERS = 4, 600

_PATH = "/usr/local/bin:/usr/bin:/bin"
_PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Variables of the node that a command gets; no other one decides what is installed."""

_CHECK = """\
import importlib.metadata, json, sys
import hyperpod_kit
print(json.dumps([sys.prefix, importlib.metadata.version("hyperpod-kit")]))
"""


def find_complete_version(directory: str, machine: str, digest: str) -> str:
    """Return the path of the complete version with this digest, "" when there is none. Of several, that which the link
    leads to."""
    prefix = f"{machine}-{digest}-"
    names = [name for name in _list_names(f"{directory}/{VERSIONS}") if name.startswith(prefix)]
    complete = [f"{directory}/{VERSIONS}/{name}" for name in names]
    complete = [path for path in complete if (read_text(f"{path}/{COMPLETE}") or "").strip() == digest]
    linked = linked_version(directory, machine)
    if linked in complete:
        return linked
    if complete:
        return complete[0]
    return ""


def linked_version(directory: str, machine: str) -> str:
    """Return the path of the version that the link leads to, "" without a link."""
    try:
        target = os.readlink(f"{directory}/{machine}")
    except OSError:
        return ""
    return os.path.join(directory, target)


def point_link(directory: str, machine: str, version: str) -> bool:
    """Have the link lead to this version, atomically; whether it led elsewhere. Raises OSError."""
    if linked_version(directory, machine) == version:
        return False
    new_link = f"{directory}/{_NEW_LINK}{os.urandom(8).hex()}"
    by_descriptor.symlink(os.path.relpath(version, directory), new_link)
    try:
        by_descriptor.rename(new_link, f"{directory}/{machine}")
    except OSError:
        by_descriptor.unlink(new_link, missing_ok=True)
        raise
    return True


def remove_unfinished_versions(directory: str, machine: str) -> None:
    """Remove what makers have left that did not come to their end. Only who has the lease may call this.

    Each is renamed first: a maker that goes on after a pause then no longer finds its directory.
    """
    place = f"{directory}/{VERSIONS}"
    for name in _list_names(place):
        if not name.startswith(f"{machine}-") or os.path.exists(f"{place}/{name}/{COMPLETE}"):
            continue
        with contextlib.suppress(OSError):
            by_descriptor.rename(f"{place}/{name}", f"{place}/{_REMOVED}{name}.{os.urandom(4).hex()}")
    for name in _list_names(place):
        if name.startswith(f"{_REMOVED}{machine}-"):
            by_descriptor.remove_tree(f"{place}/{name}", ignore_errors=True)


def clean_command(argv: Sequence[str]) -> List[str]:
    """Return the command with an environment that depends on nobody's shell, to be killed when its starter dies."""
    variables = {"PATH": _PATH, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
    variables.update({name: os.environ[name] for name in _PASSED_ON if name in os.environ})
    assignments = [f"{name}={value}" for name, value in variables.items()]
    # In /: the directory that `node apply` was started in may be closed to the owner.
    return ["setpriv", "--pdeathsig", "KILL", "env", "-C", "/", "-i", *assignments, *argv]


def require_usable_version(runner: Runner, version: str, kit_version: str) -> None:
    """Start the version's interpreter here, and have it import the kit. Raises NodeError."""
    python = f"{version}/bin/python"
    try:
        output = runner.run(clean_command([python, "-I", "-c", _CHECK]), timeout=_CHECK_SECONDS).stdout
        prefix, installed = json.loads(output)
    except RunError as err:
        raise NodeError(f"{python} does not import hyperpod_kit: {tail_of_output(err)}") from err
    except ValueError:
        raise NodeError(f"{python} does not import hyperpod_kit: it prints {clean_one_line(output)[:200]}") from None
    if os.path.realpath(prefix) != os.path.realpath(version):
        raise NodeError(f"{python} belongs to {clean_one_line(str(prefix))}, not to its own directory")
    if installed != kit_version:
        raise NodeError(f"{python} has hyperpod-kit {clean_one_line(str(installed))}, expected {kit_version}")


def tail_of_output(error: RunError) -> str:
    """Return the last lines that the command has printed, on one line; its message when it printed nothing."""
    lines = [clean_one_line(line) for line in f"{error.stdout}\n{error.stderr}".splitlines() if line.strip()]
    return " | ".join(lines[-_TAIL_LINES:])[-_TAIL_CHARACTERS:] or error.message


def _list_names(directory: str) -> List[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
