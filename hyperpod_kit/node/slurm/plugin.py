"""The SPANK plugin behind `sbatch --auto-resume`, built against this node's own Slurm.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import os
from typing import Dict

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, write_json
from hyperpod_kit.node.machine.step import SCRIPTED, Step, StepOutcome
from hyperpod_kit.untrusted import by_descriptor

INCLUDES = ("/opt/slurm/include", "/usr/include")
HEADERS = ("slurm_version.h", "spank.h")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def source_path(node: Node) -> str:
    return f"{node.paths.bundle}/slurm/plugin/auto_resume.c"


def headers_directory(node: Node) -> str:
    """The directory of Slurm's headers. Raises NodeError."""
    directory = next(
        (path for path in INCLUDES if os.path.exists(node.paths.under_root(path) + "/slurm/spank.h")), None
    )
    if directory is None:
        raise NodeError(
            f"slurm/spank.h is in none of {', '.join(INCLUDES)}",
            hint="without the plugin, use: hyperpod-kit job submit",
        )
    return node.paths.under_root(directory)


def input_digests(node: Node) -> Dict[str, str]:
    """Digests of all that the plugin is made from. Raises NodeError without source or headers."""
    text = read_text(source_path(node))
    if text is None:
        raise NodeError(f"{source_path(node)} is not in the bundle", hint="hyperpod-kit upload with the same version")
    # The headers say which Slurm it is for; Slurm's own programs answer only once they have a configuration.
    include = headers_directory(node)
    headers = "".join(read_text(f"{include}/slurm/{name}") or "" for name in HEADERS)
    return {"source": digest(text), "slurm": digest(headers)}


def build_obstacle(node: Node) -> str:
    """Why no plugin can be built on this node, whatever is done about Slurm; "" where it can."""
    try:
        headers_directory(node)
        node.runner.run(["cc", "--version"], timeout=10)
    except NodeError as err:
        return err.message
    except RunError as err:
        if err.returncode == 127:
            return "no compiler found (cc)"
        return err.message
    return ""


def is_built_from_current_inputs(node: Node) -> bool:
    """Whether the plugin that is there is the one that was made from this source for this Slurm. Raises NodeError."""
    target = node.paths.spank_plugin
    return os.path.exists(target) and read_json(target + ".json") == {
        **input_digests(node),
        "plugin": _file_digest(target),
    }


def build_if_outdated(node: Node) -> bool:
    """Compile the plugin unless `is_built_from_current_inputs`; True when it was compiled now.

    Raises NodeError without source, headers or compiler. A running srun keeps the old file: the new one is
    renamed in.
    """
    if is_built_from_current_inputs(node):
        return False
    target, digests = node.paths.spank_plugin, input_digests(node)
    by_descriptor.make_parents(target)
    # The compiler opens it, in a directory of root's, and writes over what one that was killed has left.
    partial = f"{target}.partial"
    node.runner.run(
        ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-I", headers_directory(node), "-o", partial, source_path(node)],
        timeout=120,
    )
    compiled = _file_digest(partial)
    by_descriptor.rename(partial, target)
    write_json(target + ".json", {**digests, "plugin": compiled})
    return True


def _file_digest(path: str) -> str:
    """Of the file itself: another that was laid in its place is none of ours, whatever the note beside it says."""
    with open(path, "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()


def _apply_plugin_build(node: Node) -> StepOutcome:
    return StepOutcome(build_if_outdated(node))


def _describe_pending_build(node: Node) -> str:
    if is_built_from_current_inputs(node):
        return ""
    return f"build {node.paths.spank_plugin}"


# Not required: without it, `hyperpod-kit job submit --auto-resume` still works.
STEP = Step("spank-plugin", _apply_plugin_build, _describe_pending_build, required=False, modes=SCRIPTED)
