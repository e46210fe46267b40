"""`hyperpod-kit node …`: what units, Slurm's hooks and the admin's machine run on a node.

Exit codes: 0 ok, 1 found something wrong, 2 usage, 3 could not check.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from dataclasses import asdict
from typing import Any, Callable, Dict, List, Optional, Sequence

from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.model.mounts import S3Mount
from hyperpod_kit.node.context import Node, open_node


def main(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code. Raises HyperpodKitError."""
    args = build_parser().parse_args(list(argv))
    command: Callable[[argparse.Namespace], int] = args.command
    return command(args)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hyperpod-kit node", description="Work on this node.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, function: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.set_defaults(command=function)
        return sub

    modes = ("on_create", "on_init_complete")
    add("provision", provision_command, "make this node what the bundle says").add_argument(
        "--mode", choices=modes, required=True)
    add("facts", facts_command, "who this node is, read anew").add_argument("--json", action="store_true")
    sub = add("plan", plan_command, "the steps that provision would run")
    sub.add_argument("--mode", choices=modes, default="on_create")
    sub.add_argument("--json", action="store_true")
    sub = add("mounts", mounts_command, "check the mounts now; or `mounts ensure|prepare|await|clear NAME`")
    sub.add_argument("names", nargs="*", metavar="NAME")
    sub.add_argument("--json", action="store_true")
    add("health", health_command, "check one mount and repair it: what its timer runs").add_argument("name")
    add("gate", gate_command, "may a job start here? (Prolog)")
    return parser


def provision_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.plan import plan
    from hyperpod_kit.node.provision import provision
    from hyperpod_kit.node.steps import STEPS

    try:
        node = open_node(gather=True)
    except HyperpodKitError as err:
        report_no_facts(err)
        raise
    planned = plan(STEPS, node.config, node.facts.role, args.mode)
    return 0 if provision(node, planned, args.mode, lambda line: print(line, flush=True)) else 1


def report_no_facts(err: HyperpodKitError) -> None:
    """A node that does not know who it is still says so where an admin will look."""
    from hyperpod_kit.node.paths import NodePaths
    from hyperpod_kit.node.steplog import StepRecord, append

    append(NodePaths.from_environment().log, StepRecord(
        time.time(), socket.gethostname(), "", "facts", "failed", 0, error=err.message, hint=err.hint or ""))


def facts_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node import facts
    from hyperpod_kit.node.context import read_config
    from hyperpod_kit.node.paths import NodePaths
    from hyperpod_kit.node.timing import Clock

    paths = NodePaths.from_environment()
    found = facts.gather(paths, read_config(paths), Clock(), within=0.0)
    show(found.to_dict(), args.json)
    return 0


def plan_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.plan import plan
    from hyperpod_kit.node.steps import STEPS

    node = open_node()
    planned = plan(STEPS, node.config, node.facts.role, args.mode)
    if args.json:
        print(json.dumps({"role": node.facts.role, "mode": args.mode, "steps": [item.to_dict() for item in planned]}))
    else:
        for item in planned:
            print(item.title + ("" if item.required else " (not required)"))
    return 0


def mounts_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.health.look import check_all

    if args.names and args.names[0] in ACTIONS:
        if len(args.names) != 2:
            raise UsageError(f"mounts {args.names[0]} takes one NAME")
        node = open_node()
        return ACTIONS[args.names[0]](node, args.names[1])
    node = open_node()
    mounts = [node.mount(name) for name in args.names] if args.names else node.config.mounts_for(node.facts.role)
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

    await_healthy(node, node.mount(name), seconds=60.0)
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


def show(data: Dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(data))
        return
    for key, value in data.items():
        print(f"{key}: {value}")
