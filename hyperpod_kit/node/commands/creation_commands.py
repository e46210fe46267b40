"""`hyperpod-kit node facts|plan|apply`: who this node is, what it needs, and making it so.

The steps are imported where they are needed: a prolog and a timer start the same program and must not pay for them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from dataclasses import replace
from typing import Any, Dict, List

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.node.machine import facts as node_facts
from hyperpod_kit.node.machine.context import Node, open_node, read_config
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.node.machine.steplog import StepRecord, append_record
from hyperpod_kit.node.machine.timing import Clock
from hyperpod_kit.untrusted import terminal


def facts_command(args: argparse.Namespace) -> int:
    """Print this node's facts, read anew. Exit code 0; raises what `facts.gather` raises."""
    paths = NodePaths.from_environment()
    facts = node_facts.gather(paths, read_config(paths), Clock(), within=0.0).to_dict()
    if args.json:
        terminal.print_json(document("node facts", facts))
    else:
        for key, value in facts.items():
            print(f"{key}: {value}")
    return 0


def plan_command(args: argparse.Namespace) -> int:
    """Print what `apply` would do now. Exit code 0."""
    show_plan(
        _with_requested_slurm_state_copy(open_node(gather=True, save_facts=False, within=0.0), args),
        args.mode,
        args.json,
    )
    return 0


def _with_requested_slurm_state_copy(node: Node, args: argparse.Namespace) -> Node:
    """The node with the copy of Slurm's state that was chosen on the command line."""
    from hyperpod_kit.model.slurm_state import StateCopy

    requested = None
    if args.slurm_state:
        requested = StateCopy(args.slurm_state)
    return replace(node, requested_state_copy=requested)


def apply_command(args: argparse.Namespace) -> int:
    """Exit code 0 when every required step succeeded, else 1. `--dry-run`: as `plan`."""
    from hyperpod_kit.node.creation.apply import apply
    from hyperpod_kit.node.creation.plan import plan
    from hyperpod_kit.node.creation.steps import STEPS

    if args.dry_run:
        return plan_command(args)
    try:
        node = _with_requested_slurm_state_copy(open_node(gather=True), args)
    except HyperpodKitError as err:
        log_facts_failure(err)
        raise
    mode = args.mode or node.config.lifecycle_mode
    planned = plan(STEPS, node.config, node.facts.role, node.facts.group, mode)
    if mode != node.config.lifecycle_mode:
        log_mode_mismatch(node, mode)
    if args.json:
        stream = sys.stderr
    else:
        stream = sys.stdout
    status = apply(node, planned, mode, lambda line: print(line, file=stream, flush=True))
    if args.json:
        terminal.print_json(document("node apply", status))
    if status["ok"]:
        return 0
    return 1


def secrets_command(args: argparse.Namespace) -> int:
    """Fetch this node's secrets into their files, and print which changed. Exit code 0; raises NodeError."""
    from hyperpod_kit.node.setup.secret_files import fetch_secrets_and_delete_unneeded

    changed = fetch_secrets_and_delete_unneeded(open_node())
    print(f"changed: {', '.join(changed) or 'nothing'}")
    return 0


def show_plan(node: Node, mode: str, as_json: bool) -> None:
    """Print what `apply` would do now; nothing is changed, not even a log."""
    from hyperpod_kit.node.creation.apply import preview
    from hyperpod_kit.node.creation.plan import plan
    from hyperpod_kit.node.creation.steps import STEPS

    mode = mode or node.config.lifecycle_mode
    steps = preview(node, plan(STEPS, node.config, node.facts.role, node.facts.group, mode))
    changed = sum(bool(step["would"]) for step in steps)
    if as_json:
        terminal.print_json(
            document(
                "node plan",
                {
                    "node": node.facts.node,
                    "role": node.facts.role,
                    "mode": mode,
                    "bundle_id": node.bundle_id,
                    "changed": changed,
                    "steps": steps,
                },
            )
        )
        return
    for step in steps:
        print(format_previewed_step(step))
    print(f"changed={changed}")


def keep_slurm_state_lease_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.machine.context import open_node
    from hyperpod_kit.node.slurm import lease_keeper

    return lease_keeper.run_lease_keeper(open_node())


def format_previewed_step(step: Dict[str, Any]) -> str:
    parts: List[str] = [step["step"]]
    if not step["required"]:
        parts.append("(not required)")
    line = " ".join(parts)
    if step["would"]:
        return f"{line}: {step['would']}"
    if not step["error"]:
        return f"{line}: nothing"
    line = f"{line}: cannot tell: {step['error']}"
    if step["hint"]:
        return f"{line}\nhint: {step['hint']}"
    return line


def log_mode_mismatch(node: Node, mode: str) -> None:
    """Log that the bundle runs in another mode than it was rendered for.

    This is legitimate beside other lifecycle scripts. Otherwise LifeCycleConfig names the wrong script, and later steps
    will time out.
    """
    append_record(
        node.paths.provisioning_log,
        StepRecord(
            node.clock.wall(),
            node.facts.node,
            node.facts.role,
            "mode",
            "ok",
            0,
            detail=f"applied in mode {mode}; the bundle was made for {node.config.lifecycle_mode}",
        ),
    )


def log_facts_failure(err: HyperpodKitError) -> None:
    """Append to provisioning.log that this node's facts could not be gathered, so that an admin finds it
    there."""
    append_record(
        NodePaths.from_environment().provisioning_log,
        StepRecord(time.time(), socket.gethostname(), "", "facts", "failed", 0, error=err.message, hint=err.hint or ""),
    )
