"""The SPANK plugin behind `sbatch --auto-resume`, built against this node's own Slurm.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import os

from hyperpod_kit.errors import NodeError
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_json, read_text, write_json

INCLUDES = ("/opt/slurm/include", "/usr/include")
HEADERS = ("slurm_version.h", "spank.h")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def build(node: Node) -> bool:
    """Compile the plugin unless the one that is there was made from this source for this Slurm; True when built.

    Raises NodeError without source, headers or compiler. A running srun keeps the old file: the new one is renamed in.
    """
    source = f"{node.paths.bundle}/slurm/plugin/auto_resume.c"
    text = read_text(source)
    if text is None:
        raise NodeError(f"{source} is not in the bundle", hint="hyperpod-kit upload with the same version")
    include = next((path for path in INCLUDES if os.path.exists(node.paths.real(path) + "/slurm/spank.h")), None)
    if include is None:
        raise NodeError(f"slurm/spank.h is in none of {', '.join(INCLUDES)}",
                        hint="without the plugin, use: hyperpod-kit job submit")
    # The headers say which Slurm it is for; Slurm's own programs answer only once they have a configuration.
    headers = "".join(read_text(f"{node.paths.real(include)}/slurm/{name}") or "" for name in HEADERS)
    made_from = {"source": digest(text), "slurm": digest(headers)}
    target = node.paths.spank_plugin
    if os.path.exists(target) and read_json(target + ".json") == made_from:
        return False
    os.makedirs(os.path.dirname(target), exist_ok=True)
    partial = f"{target}.partial"
    node.runner.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-I", node.paths.real(include), "-o", partial, source],
                    timeout=120)
    os.replace(partial, target)
    write_json(target + ".json", made_from)
    return True
