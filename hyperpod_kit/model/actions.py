"""One thing that was done with root's rights to what is another's: as a node tells it, as an admin reads it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

MOST = 500
"""Actions of one node that are shown: the newest."""

LONGEST = 1000
"""Characters of one value."""


@dataclass(frozen=True)
class Action:
    """One record. at: Unix seconds; unit: the systemd unit in which it was done, "" for none."""

    at: float
    action: str
    on: str
    owner: str
    why: str
    asked_by: str
    unit: str

    def to_line(self) -> str:
        """One line for a person."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at))
        owner = ""
        if self.owner:
            owner = f" of {self.owner}"
        return f"{when}  {self.action} {self.on}{owner}, asked by {self.asked_by}: {self.why}"
