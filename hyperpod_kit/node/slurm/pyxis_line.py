"""The line of plugstack.conf that has Slurm load pyxis, where the step of that name is on.

`required`: without it a node that lacks the plugin would run tasks that ask for an image outside of any container.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import platform
from typing import List

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.slurm.hooks import without_kit_block

FILE = "spank_pyxis.so"
# NVIDIA's own package has the first path, one that was built for HyperPod's Slurm the second, `make install` the last.
PLUGINS = (
    f"/usr/lib/{platform.machine()}-linux-gnu/slurm/{FILE}",
    f"/opt/slurm/lib/slurm/{FILE}",
    f"/usr/lib/slurm/{FILE}",
    f"/usr/local/lib/slurm/{FILE}",
)
RUNTIME = "/run/pyxis"


def plugstack_lines(node: Node, plugstack: str) -> List[str]:
    """Return the line that has Slurm load pyxis; nothing where the step is off, or somebody else has Slurm
    load it already."""
    if (
        "pyxis" not in node.config.steps.enabled_step_names
        or FILE in without_kit_block(plugstack)
        or _is_pyxis_named_in_plugstack_conf_d(node)
    ):
        return []
    plugin_path = next((path for path in PLUGINS if os.access(node.paths.under_root(path), os.R_OK)), PLUGINS[0])
    return [f"required {plugin_path} runtime_path={RUNTIME}"]


def _is_pyxis_named_in_plugstack_conf_d(node: Node) -> bool:
    """Whether a file beside plugstack.conf names it, as AWS's script links one into plugstack.conf.d."""
    folder = f"{node.paths.plugstack_conf}.d"
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return any(FILE in (read_text(f"{folder}/{name}") or "") for name in sorted(os.listdir(folder)))
    return False
