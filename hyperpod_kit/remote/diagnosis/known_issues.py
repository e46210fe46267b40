"""What is known of failures on HyperPod nodes: a pattern of their words, what it means, what to do.

Pure: text in, findings out. Sources are the threads named beside the entries; the rest are AWS's own messages
(Getting started with SageMaker HyperPod, validation errors) and what the kit's own steps say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator

from hyperpod_kit.untrusted.text import clean_one_line


@dataclass(frozen=True)
class Cause:
    """`code` is stable; `pattern` is searched without regard to case, and repeats nothing without a bound."""

    code: str
    pattern: str
    meaning: str
    remedy: str


CAUSES = (
    Cause(
        "apt-lock",
        r"could not get (?:dpkg frontend )?lock|unable to acquire the dpkg|package lock is held",
        # awslabs/awsome-distributed-ai #96
        "another process holds the package manager's lock, mostly unattended-upgrades right after boot",
        "wait and replace the node; list the packages under hyperpod_kit.clients so that a step waits for the lock",
    ),
    Cause(
        "dns",
        r"could not resolve host|temporary failure in name resolution|does not resolve after",
        # awslabs/awsome-distributed-ai #678
        "names do not resolve on the node",
        "the VPC needs DNS resolution and DNS host names on, and a route or an endpoint for the service",
    ),
    Cause(
        "crlf",
        r"bad interpreter.{0,200}\^M|\\r': command not found|\$'\\r'|windows line ends",
        "a script has Windows line ends",
        "dos2unix the script, then hyperpod-kit upload",
    ),
    Cause(
        "mode-conflict",
        r"cannot include both a slurm orchestrator config and a provisioning_parameters\.json",
        "the bundle's prefix holds provisioning_parameters.json while the request carries SlurmConfig",
        "hyperpod-kit upload puts the file there only in on_create mode; remove the one in the prefix by hand",
    ),
    Cause(
        "damaged-bundle",
        r"sha256sum|is not listed in SHA256SUMS|SHA256SUMS is missing|does not carry the id"
        r"|lib\.tar\.gz (?:is|has|holds) |(?:from|in|beside) lib\.tar\.gz",
        "the bundle on the node is not what was uploaded",
        "hyperpod-kit upload, then replace the node",
    ),
    Cause(
        "s3-denied",
        r"(?:mount-s3|s3).{0,120}(?:403|access ?denied|forbidden)",
        "the execution role may not use the bucket",
        "s3:ListBucket, s3:GetObject and, to write, PutObject and DeleteObject for the group's execution role",
    ),
    Cause(
        "efs-denied",
        r"access denied by server while mounting|mount\.nfs4: access denied",
        "EFS refuses this role, or this access point",
        "elasticfilesystem:ClientMount and ClientWrite for the role; hyperpod-kit users show the policy of homes",
    ),
    Cause(
        "efs-unreachable",
        r"mount\.nfs4: connection (?:timed out|reset)|mount target.{0,200}not found",
        "no mount target answers on port 2049",
        "a mount target in the node's availability zone, and its security group open for 2049 from the nodes",
    ),
    Cause(
        "fuse-stale",
        r"transport endpoint is not connected",
        # awslabs/mountpoint-s3 #630
        "the mount's daemon died and left its endpoint behind",
        "the health timer mounts it again; journalctl -u hyperpod-kit-s3-<name> shows why it died",
    ),
    Cause(
        "lustre-module",
        r"module lustre not found|unknown filesystem type 'lustre'|modprobe.{0,200}lustre"
        r"|mount\.lustre: .{0,300}no such device|are the lustre modules loaded",
        # aws/aws-parallelcluster #2095, #4057
        "the kernel has no Lustre module, mostly because the kernel was updated",
        "an AMI with the module for its kernel; the kit holds kernel and client packages once they fit",
    ),
    Cause(
        "cluster-id",
        r"cluster id mismatch|clustername to override this safety check",
        # Slurm 24.05 and later; docs/how-to/accounting.md
        "slurmctld's state and the accounting database have different cluster ids, so slurmctld does not start",
        "on the controller, move `clustername` out of StateSaveLocation and start slurmctld, which then uses the "
        "id in the database",
    ),
    Cause(
        "capacity",
        r"insufficient ?(?:instance ?)?capacity|do not have sufficient capacity",
        "AWS has no instance of this type in that zone now",
        "another zone, a training plan, or wait",
    ),
    Cause(
        "quota",
        r"resourcelimitexceeded|account-level service limit|exceeded.{0,40}quota",
        "the account's quota for this instance type is used up",
        "request a higher quota in Service Quotas",
    ),
    Cause(
        "no-space",
        r"no space left on device",
        # awslabs/awsome-distributed-ai #187
        "a disk of the node is full, mostly / with container images or a cache",
        "put caches on /opt/dlami/nvme or /opt/sagemaker; df -h on the node",
    ),
    Cause(
        "credentials",
        r"no ec2 imds role found|unable to locate credentials|failed to load credentials",
        "the node has no credentials of its role",
        "never run `aws configure` on a node; check the execution role",
    ),
    Cause(
        "not-registered",
        r"has not registered with the controller",
        "slurmd does not reach slurmctld, or slurm.conf does not list the node",
        "security group open between the nodes; journalctl -u slurmd on the node",
    ),
    Cause(
        "unknown-node",
        r"instance not found in resource config|lists no instance with an address of this machine",
        "the node is not in resource_config.json yet",
        "replace the node; HyperPod writes the file again",
    ),
    Cause(
        "scripts-missing",
        r"ensure the scripts exist in provided s3 path",
        "the lifecycle script ended with an error, or is missing",
        "read the node's own log below; hyperpod-kit diff shows whether the bundle is in place",
    ),
)
"""The more telling one first: of a text that several fit, the first is shown first."""


@dataclass(frozen=True)
class RecognisedCause:
    """A cause that was recognised, with the words that it was recognised by."""

    cause: Cause
    evidence: str


LONGEST_TEXT = 64 << 10
"""Characters that are searched, of the end where there are more: what failed last is said last."""

LONGEST_LINE = 4 << 10
"""Characters of one line that are searched."""


def recognise(text: str) -> Iterator[RecognisedCause]:
    """Yield every known cause in a text, each once, with the line that shows it. The time is bounded, whatever
    the text."""
    text = truncate_for_search(text)
    for cause in CAUSES:
        match = re.search(cause.pattern, text, re.IGNORECASE)
        if match:
            begin = text.rfind("\n", 0, match.start()) + 1
            end = text.find("\n", match.end())
            stop = None
            if end >= 0:
                stop = end
            yield RecognisedCause(cause, clean_one_line(text[begin:stop], 200))


def truncate_for_search(text: str) -> str:
    """Return the part of a text that is searched: its end, with long lines cut."""
    return "\n".join(line[:LONGEST_LINE] for line in text[-LONGEST_TEXT:].split("\n"))
