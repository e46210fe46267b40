"""What each command is given that is not there: its exit code has to be 3, never 0, 1 or 2.

The list of commands is the command line's own: `test_every_command_has_an_entry` finds one that is not here.
`node` runs as on a machine without a bundle.
{gone} is a place where nothing is. {config}, {homes}, {root}, {script}, {file} and {tokenizer} are there; {out} is
empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple


@dataclass(frozen=True)
class Absences:
    """Lines of words behind the command's name.

    paths: each names what is not there; asks: AWS, which has no credentials or does not answer; signs: AWS by a program
    of another, which tries for minutes where nothing answers; extras: needs a package that is not installed, as each
    line of `asks` does. without: why a command has no line at all.
    """

    paths: Tuple[str, ...] = ()
    asks: Tuple[str, ...] = ()
    signs: Tuple[str, ...] = ()
    extras: Tuple[str, ...] = ()
    without: str = ""


GROUP = Absences(without="a group of commands, which runs none")
OWN = Absences(without="it names nothing that may be absent")
CONFIG = Absences(("{gone}.json",))
CLUSTER = Absences(("{gone}.json",), ("{config}",))
NODES = Absences(("{gone}.json worker-group/0 --yes",), ("{config} worker-group/0 --yes",))
ROOT = Absences(("{gone}",))
LEDGER = Absences(("--ledger {gone}",))
ON_A_NODE = Absences(("",))
"""Without a bundle."""
REHEARSAL = Absences(("--name gone",))

ENTRIES: Dict[str, Absences] = {
    "init": Absences(
        (
            "{out}/c.json --from-cluster-config {gone} --region us-west-2",
            "{out}/c.json --from-parameters {gone} --region us-west-2",
            "{gone}/c.json --from-example",
        ),
        ("{out}/c.json --from-cluster ml --region us-west-2",),
    ),
    "config": GROUP,
    "config show": CONFIG,
    "config schema": OWN,
    "validate": Absences(("{gone}.json",), ("{config} --aws",)),
    "policy": CONFIG,
    "infra": GROUP,
    "infra template": Absences(("{gone}.json",), extras=("{config}",)),
    "describe-package": Absences(("{gone}.deb",)),
    "render": Absences(("{gone}.json --out {out}/bundle",), extras=("{config} --out {out}/bundle",)),
    "diff": CLUSTER,
    "upload": CLUSTER,
    "create-cluster": CLUSTER,
    "update-cluster": Absences(("{gone}.json --yes",), ("{config} --yes",)),
    "update-software": Absences(("{gone}.json --yes",), ("{config} --yes",)),
    "rollout": GROUP,
    "rollout start": Absences(("{gone}.json --yes",), ("{config} --yes",)),
    "rollout resume": Absences(("{gone}.json --yes",), ("{config} --yes",)),
    "rollout undo": Absences(("{gone}.json --yes",), ("{config} --yes",)),
    "rollout pause": CLUSTER,
    "rollout status": CLUSTER,
    "wait": Absences(("{gone}.json",), ("{config} --interval 0.2",)),
    "describe-cluster": CLUSTER,
    "list-clusters": Absences((), ("--region us-west-2",)),
    "list-cluster-nodes": CLUSTER,
    "replace-node": NODES,
    "reboot-node": NODES,
    "delete-node": NODES,
    "health-check": NODES,
    "operations": CLUSTER,
    "events": CLUSTER,
    "connect": CLUSTER,
    "delete-cluster": Absences(("{gone}.json --yes",), ("{config} --yes",)),
    "validate-mounts": CLUSTER,
    "fleet": Absences(("{gone}.json", "--notes {gone}"), ("{config}",)),
    "diagnose": CLUSTER,
    "support-bundle": Absences(("{gone}.json",), ("{config} --out {out}/s.tar.gz",)),
    "users": GROUP,
    "users apply": Absences(("{gone}.json",), ("{homes}",)),
    "users policy": CONFIG,
    "job": GROUP,
    "job run": Absences(("--checkpoint-root {gone} -- true",)),
    "job status": Absences(("--root {gone}", "--root {gone} --json", "4711 --root {gone}", "4711")),
    "job goodput": Absences(("--root {gone}", "--root {gone} --json")),
    "job lint": Absences(("{gone}.sbatch", "{script} {gone}.sbatch")),
    "job doctor": Absences(("",)),
    "job sweep": Absences(("",)),
    "job submit": Absences(("--auto-resume=1 {gone}.sbatch",)),
    "job rewind": Absences(("{gone} a-1",)),
    "job prove": ROOT,
    "job task-prolog": OWN,
    "checkpoint": GROUP,
    "checkpoint ls": Absences(("{gone}", "{gone} --json")),
    "checkpoint show": ROOT,
    "checkpoint get": Absences(("{gone} w --out {out}/w",)),
    "checkpoint verify": ROOT,
    "checkpoint repair": ROOT,
    "checkpoint prune": Absences(("{gone} --latest 1",)),
    "checkpoint pin": Absences(("{gone} a-1",)),
    "checkpoint unpin": Absences(("{gone} a-1",)),
    "checkpoint flush": OWN,
    "checkpoint bench": Absences(extras=("--dir {out}",)),
    "checkpoint diff": Absences(("{gone} {gone}",), extras=("{root} {root}",)),
    "checkpoint export": Absences(
        ("{gone} --to safetensors --out {out}/e",), extras=("{root} --to torch --out {out}/e",)
    ),
    "checkpoint import": Absences(
        ("{gone} --from safetensors --out {out}/i",), extras=("{file} --from torch --out {out}/i",)
    ),
    "checkpoint torture": Absences(extras=("--dir {out}",)),
    "fan-out": Absences(("{gone} {out}",)),
    "data": GROUP,
    "data index": Absences(("{gone} --out {out}/i", "{gone}/*.jsonl --out {out}/i"), ("s3://bucket/p --out {out}/i",)),
    "data show": Absences(("{gone}",), extras=("{root}",)),
    "data verify": Absences(("{gone}",), extras=("{root}",)),
    "data verify-ledger": ROOT,
    "data tokenize": Absences(
        ("{gone} --tokenizer {tokenizer} --out {out}/t", "{file} --tokenizer {gone} --out {out}/t"),
        ("s3://bucket/p --tokenizer {tokenizer} --out {out}/t",),
    ),
    "data stage": Absences(("{gone} {out}/s",), signs=("s3://bucket/p {out}/s",)),
    "data merge": Absences(("{gone} {out}/m",)),
    "data split": Absences(("{gone} {out}/m",)),
    "data bench": Absences(("{gone}",), ("s3://bucket/p",)),
    "data make-corpus": OWN,
    "storage": GROUP,
    "storage plan": Absences(("--calibration {gone}",)),
    "storage bench": Absences(("{gone}",)),
    "storage usage": Absences(("{gone}",), ("s3://bucket/p",)),
    "storage quota": GROUP,
    "storage quota set": Absences(("{gone} --bytes 1GiB",)),
    "storage quota show": ROOT,
    "storage quota check": ROOT,
    "storage quota stop": Absences((), ("fs-0123456789abcdef0 fsap-0123456789abcdef0",)),
    "storage quota resume": Absences((), ("fs-0123456789abcdef0 fsap-0123456789abcdef0",)),
    "storage request": Absences(("{gone} --bytes 1GiB",)),
    "storage requests": GROUP,
    "storage requests open": ROOT,
    "storage requests list": ROOT,
    "storage requests approve": Absences(("{gone} 1",)),
    "storage requests deny": Absences(("{gone} 1 --why no",)),
    "storage tier": Absences(("{gone} --delete --older-than 1d",)),
    "storage preload": Absences(("{gone}", "--files-from {gone}")),
    "storage audit": GROUP,
    "storage audit import": Absences(("node {gone} --ledger {out}/l",)),
    "storage audit jobs": Absences(("--from {gone} --ledger {out}/l", "--ledger {out}/l2")),
    "storage audit query": LEDGER,
    "storage audit verify": LEDGER,
    "storage audit retain": Absences(("--ledger {gone} --older-than 1d",)),
    "rehearse": GROUP,
    "rehearse up": OWN,
    "rehearse env": REHEARSAL,
    "rehearse status": REHEARSAL,
    "rehearse exec": Absences(("--name gone controller true",)),
    "rehearse kill-node": Absences(("--name gone controller",)),
    "rehearse freeze-node": Absences(("--name gone controller",)),
    "rehearse partition-node": Absences(("--name gone controller",)),
    "rehearse break-mount": Absences(("unmount --name gone controller /fsx",)),
    "rehearse replace-node": Absences(("--name gone controller",)),
    "rehearse logs": Absences(("--name gone controller",)),
    "rehearse down": Absences(without="a rehearsal that is not up is what it is asked for"),
    "rehearse sandbox": Absences(("{gone}.json",), extras=("{config}",)),
    "explain": OWN,
    "completion": OWN,
    "node": GROUP,
    "node facts": ON_A_NODE,
    "node plan": ON_A_NODE,
    "node apply": Absences(("--dry-run",)),
    "node mounts": Absences(("", "--json", "fsx", "ensure fsx")),
    "node health": Absences(("", "--json")),
    "node repair": Absences(("fsx",)),
    "node drain": ON_A_NODE,
    "node slurm-state": ON_A_NODE,
    "node memory": ON_A_NODE,
    "node upkeep": ON_A_NODE,
    "node devices": Absences(("", "--json", "--count")),
    "node slurm": Absences(("", "--json", "--mend")),
    "node secrets": ON_A_NODE,
    "node actions": Absences(("", "--json")),
    "node audit": Absences(("{gone} --log {out}/l",)),
    "node fetch": Absences(("s3://bundles/gone {out}",)),
    "node uninstall": Absences(("", "--dry-run")),
    "node gate": ON_A_NODE,
    "node ask": ON_A_NODE,
}

NEVER_BARE: Dict[str, str] = {
    "rehearse up": "it makes machines of this host",
    "rehearse down": "it ends those that are up",
    "checkpoint bench": "it measures for minutes, in a directory that it makes",
    "checkpoint torture": "it kills trainers for minutes, in a directory that it makes",
}
"""Commands that are never run without an argument, and why."""
