"""One thing that the nodes' role must be allowed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional, Sequence

CLUSTER_LOGS = "/aws/sagemaker/Clusters"
"""Log group and metric namespace of every HyperPod cluster."""


@dataclass(frozen=True)
class Permission:
    """`actions` on `resources` under `context` (condition key -> value), without which `purpose` does not work.

    sid: letters and digits, unique in a configuration; path: the place in the configuration that asks for it;
    optional: something still works without it; condition: operator of the policy's condition on `context`.
    """

    sid: str
    purpose: str
    path: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    context: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional: bool = False
    condition: str = "StringEquals"

    def simulation_contexts(self) -> Iterator[dict[str, str]]:
        """Yield one context for each simulation: every value of a key that has several must be allowed."""
        longest = max((len(values) for values in self.context.values()), default=1)
        for index in range(longest):
            yield {key: values[min(index, len(values) - 1)] for key, values in self.context.items()}


Carried = Sequence[tuple[Any, str]]
"""The mounts of one kind that a role's nodes have, each with its place in the configuration."""


@dataclass(frozen=True)
class Account:
    """Whose resources the ARNs name."""

    partition: str
    number: str
    region: str

    def arn(self, service: str, resource: str, region: Optional[str] = None) -> str:
        """Return the ARN of a resource of this account in the cluster's region, or in `region`."""
        return f"arn:{self.partition}:{service}:{region or self.region}:{self.number}:{resource}"


def sid_part_from_name(name: str) -> str:
    """Convert a name to a part of a Sid, which takes letters and digits only; `a-1` and `a1` stay apart."""
    digest = ""
    if "-" in name:
        digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return "".join(part.capitalize() for part in name.split("-")) + digest
