"""The configuration's own scripts: what a node runs beside our steps, where among them, and for how long at most.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Tuple

from hyperpod_kit.model.states import ROLES

BEFORE_MOUNTS = "before-mounts"
AFTER_MOUNTS = "after-mounts"
AFTER_SLURM = "after-slurm"
PLACES = (BEFORE_MOUNTS, AFTER_MOUNTS, AFTER_SLURM)
"""Among the steps: users, secrets and clients are there, no mount yet; mounts and homes are there, our Slurm daemons
not yet; all that we do is done."""

WITHOUT_FIRST_LINE: Mapping[str, Tuple[str, ...]] = {".sh": ("/bin/bash",), ".py": ("/usr/bin/python3", "-u")}
"""What starts a file that does not begin with #!, by how its name ends: so AWS's lifecycle_script.py starts its own."""

CLUSTER, GROUP, ROLE, CONTROLLERS, LOGINS = "{cluster}", "{group}", "{role}", "{controllers}", "{logins}"
STAND_FOR = (CLUSTER, GROUP, ROLE, CONTROLLERS, LOGINS)
"""Arguments that stand for what only the node knows; the last two for addresses, with commas between them."""

DIRECTORY = "scripts/"
"""Where their files lie in the bundle, each script's in a directory of its name."""


@dataclass(frozen=True)
class CustomScript:
    """One script. `run`: the file that is started, below the script's own directory; `arguments`: one of STAND_FOR is
    replaced by what it stands for; `timeout`: seconds; `groups`: only these instance groups, all when empty;
    `required`: whether its failure fails the node; `always`: at each run of `node apply`, and not once for the same
    files and arguments."""

    name: str
    run: str
    arguments: Tuple[str, ...] = ()
    when: str = AFTER_MOUNTS
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()
    timeout: float = 300.0
    required: bool = True
    always: bool = False

    @property
    def bundle_directory(self) -> str:
        """Its directory in the bundle, with a slash at the end."""
        return f"{DIRECTORY}{self.name}/"

    def runs_on(self, role: str, group: str) -> bool:
        """Whether a node of that role, in that instance group, runs it."""
        return role in self.roles and (not self.groups or group in self.groups)
