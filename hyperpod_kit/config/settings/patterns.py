"""What a text of the configuration must look like, and what is said of one that does not.

Which key has which pattern is in fields/fields.py; rules/patterns.py checks them all, and the JSON Schema shows them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CLUSTER_NAME = r"(?!.{64})[a-zA-Z0-9](-*[a-zA-Z0-9])*"
"""Of a cluster, an instance group, a partition that the API makes (botocore: SlurmConfig.PartitionNames)."""
CLUSTER_ARN = r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:[0-9]{12}:cluster/[a-z0-9]{12}"
"""Of a cluster, as AWS writes it."""
PARTITION = r"(?![dD][eE][fF][aA][uU][lL][tT]$)[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,62}"
"""Of a partition that slurm.conf alone names; AWS's own automation writes instance types there (ml.p5.48xlarge).
DEFAULT is Slurm's word for what all partitions have."""
REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]"
ROLE_ARN = r"arn:aws[a-z-]*:iam::\d{12}:role(?!.*/\.\.?/)/?[a-zA-Z_0-9+=,.@/_-]+"
INSTANCE_TYPE = r"ml\.[a-z0-9-]+\.[a-z0-9]+"
INSTANCE_TYPE_PREFIX = "ml."
BUCKET = r"(?!xn--)(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
MOUNT_NAME = r"(?!-)[a-z0-9-]{1,40}"
USER_NAME = r"[a-z_]([a-z0-9_-]{0,30}[a-z0-9_])?"
ACCESS_POINT_PARENT = r"/|(/[A-Za-z0-9_-][A-Za-z0-9._-]*){1,3}"
"""Of the access points' four levels (EFS's limit) the last is the user's own."""
PACKAGE_NAME = r"[a-z0-9][a-z0-9+.-]+"
"""Debian policy 5.6.1."""
PACKAGE_VERSION = r"(\d+:)?\d[A-Za-z0-9.+~-]*"
"""Debian policy 5.6.12."""
SHA256 = r"[0-9a-f]{64}"


@dataclass(frozen=True)
class Pattern:
    """`code`, `message` and `hint` make the finding about a text that `regex` does not match as a whole.

    `{value}` in `message` stands for the text; a secret's is not repeated. prefix: what is often left out in front.
    """

    code: str
    regex: str
    message: str
    hint: str
    prefix: str = ""

    def remedy(self, text: str) -> str:
        """Say what to write instead of a text that does not fit."""
        if self.prefix and self.fits(self.prefix + text):
            return f"Write `{self.prefix}{text}`"
        return self.hint

    def fits(self, text: str) -> bool:
        """Whether the text is as it must be."""
        return re.fullmatch(self.regex, text) is not None
