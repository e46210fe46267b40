"""A secret as the configuration names it: where it is kept, and for whom a node fetches it. Never its value.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Tuple

from hyperpod_kit.model.states import ROLES

ARN = re.compile(
    r"arn:aws[a-z-]*:(?:secretsmanager:[a-z]{2}(?:-[a-z]+)+-\d:\d{12}:secret:[A-Za-z0-9/_+=.@-]{1,519}"
    r"|ssm:[a-z]{2}(?:-[a-z]+)+-\d:\d{12}:parameter/[A-Za-z0-9/_.-]{1,1011})"
)
"""A secret of Secrets Manager or a parameter of Systems Manager, in any partition."""


@dataclass(frozen=True)
class Secret:
    """Fetched by nodes of `roles` to /run/hyperpod-kit/secrets/`name`, which only `owner` can read."""

    name: str
    arn: str
    owner: str = "root"
    roles: Tuple[str, ...] = ROLES

    @property
    def service(self) -> str:
        """`secretsmanager` or `ssm`."""
        return self.arn.split(":")[2]

    @property
    def region(self) -> str:
        """The region that keeps it, which need not be the cluster's."""
        return self.arn.split(":")[3]

    @property
    def partition(self) -> str:
        """`aws`, `aws-cn`, …"""
        return self.arn.split(":")[1]
