"""The doors of the program: names by which others start it, and which therefore do not move.

A caller here is a process that began with another version of this code: a job, an agent, a daemon or a unit on a node
whose bundle was changed meanwhile, Slurm, HyperPod, or an admin's script. A door is opened for each of them until no
such caller can be left. Whatever is not in this list may be moved and renamed at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

BEFORE = "before 0.1.0"


class DoorKind(Enum):
    """How a door is opened: by a path below an installed bundle, as `python -m NAME`, or by an import."""

    FILE = "file"
    MODULE = "module"
    FUNCTION = "function"


@dataclass(frozen=True)
class Door:
    """`name`: a path below the installed bundle, a module, or `module:function`; `since`: the first to have it."""

    name: str
    kind: DoorKind
    callers: str
    since: str
    on_nodes: bool = True

    @property
    def installed_file_path(self) -> str:
        """Return its file below the installed bundle."""
        if self.kind is DoorKind.FILE:
            return self.name
        module = self.name.partition(":")[0]
        return f"lib/{module.replace('.', '/')}.py"


DOORS = (
    Door("on_create.sh", DoorKind.FILE, "HyperPod (LifeCycleConfig.OnCreate), and admins by hand", BEFORE),
    Door("on_init_complete.sh", DoorKind.FILE, "HyperPod (LifeCycleConfig.OnInitComplete), and admins by hand", BEFORE),
    Door("lifecycle_script.py", DoorKind.FILE, "other lifecycle scripts, with the arguments of AWS's own", BEFORE),
    Door("bin/hyperpod-kit", DoorKind.FILE, "/usr/local/bin/hyperpod-kit, units, Slurm's hooks, SSH", BEFORE),
    Door("lib/__main__.py", DoorKind.FILE, "bin/hyperpod-kit and on_create.sh, as `python3 -I -S …/lib`", BEFORE),
    Door("node_config.json", DoorKind.FILE, "`job lint` of a job's environment, to read what the node has", "0.1.0"),
    Door("lib/hyperpod_kit/job/__main__.py", DoorKind.FILE, "srun, for each rank of a `job run` at work", BEFORE),
    Door("slurm/prolog.sh", DoorKind.FILE, "slurmd, by its slurm.conf", BEFORE),
    Door("slurm/epilog.sh", DoorKind.FILE, "slurmd, by its slurm.conf", BEFORE),
    Door("slurm/task_prolog.sh", DoorKind.FILE, "the SPANK plugin, and a slurm.conf that names it", BEFORE),
    Door("hyperpod_kit.node.__main__", DoorKind.MODULE, "admins, as `python3 -m hyperpod_kit.node`", BEFORE),
    Door("hyperpod_kit.checkpoint.agent.agent_main", DoorKind.MODULE, "a trainer at work, for each rank", BEFORE),
    Door("hyperpod_kit.checkpoint.repository.agent_main", DoorKind.MODULE, "a trainer: its former name", BEFORE),
    Door("hyperpod_kit.checkpoint.repository.cli:main", DoorKind.FUNCTION, "lib/__main__.py: its former name", BEFORE),
    Door("hyperpod_kit.cli.main:main", DoorKind.FUNCTION, "the console script of the package", BEFORE, on_nodes=False),
)
