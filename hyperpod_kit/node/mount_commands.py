"""`hyperpod-kit node mounts|health|gate`: the mounts of this node, for a person, a unit and Slurm's prolog.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Callable, Dict, List, Optional

from hyperpod_kit.errors import UsageError
from hyperpod_kit.model.mounts import S3Mount
from hyperpod_kit.node.context import Node, open_node


def mounts_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.health.look import check_all

    if args.names and args.names[0] in ACTIONS:
        if len(args.names) != 2:
            raise UsageError(f"mounts {args.names[0]} takes one NAME")
        node = open_node()
        return ACTIONS[args.names[0]](node, args.names[1])
    node = open_node()
    mounts = [node.mount(name) for name in args.names] if args.names else node.mounts
    found = check_all(node, mounts)
    if args.json:
        print(json.dumps({
            "node": node.facts.node, "instance_id": node.facts.instance_id, "bundle_id": node.bundle_id,
            "role": node.facts.role, "checked_at": node.clock.wall(), "mounts": [asdict(status) for status in found]}))
    else:
        for status in found:
            words = [f"{status.state:<12}", f"{status.name:<16}", status.path, status.source, status.detail]
            print("  ".join(word for word in words if word))
    return 0 if all(status.healthy for status in found) else 1


def ensure_action(node: Node, name: str) -> int:
    from hyperpod_kit.node.mounts.ensure import ensure

    mount = node.mount(name)
    if isinstance(mount, S3Mount):
        raise UsageError(f"{name} is mounted by its daemon's unit", hint=f"systemctl start hyperpod-kit-s3-{name}")
    ensure(node, mount)
    return 0


def prepare_action(node: Node, name: str) -> int:
    from hyperpod_kit.node.mounts.ensure import prepare

    prepare(node, node.mount(name))
    return 0


def await_action(node: Node, name: str) -> int:
    from hyperpod_kit.node.mounts.ensure import await_healthy
    from hyperpod_kit.node.mounts.record import remember

    await_healthy(node, node.mount(name), seconds=60.0)
    remember(node, node.mount(name))  # from now on a mount that is laid above ours is seen as that
    return 0


def clear_action(node: Node, name: str) -> int:
    from hyperpod_kit.node.mounts.ensure import clear_dead

    clear_dead(node, node.mount(name))
    return 0


ACTIONS: Dict[str, Callable[[Node, str], int]] = {
    "ensure": ensure_action, "prepare": prepare_action, "await": await_action, "clear": clear_action}
"""Words that no mount may have for a name where they are used: the second word decides."""


def health_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.health.repair import tend

    node = open_node()
    record = tend(node, node.mount(args.name))
    said: List[Optional[str]] = [f"{args.name}: {record.status['state']}", record.status.get("detail")]
    if record.failures:
        said += [f"{record.failures} in a row", "degraded" if record.degraded else None, record.last_repair or None]
        print("; ".join(word for word in said if word), file=sys.stderr)
    return 1 if record.failures else 0


def gate_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.gate import closed_by, reason

    bad = closed_by(open_node())
    if bad:
        print(reason(bad), file=sys.stderr)
    return 1 if bad else 0
