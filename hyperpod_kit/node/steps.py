"""The steps of a node's creation, in order. Read `STEPS` from top to bottom: that is what happens.

Each step is idempotent and bounded, and says whether it changed anything. Which of them this node needs is decided in
plan.py, running them is provision.py's.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

from hyperpod_kit.errors import MountFailed, RunError
from hyperpod_kit.model.mounts import Mount, S3Mount
from hyperpod_kit.model.units import carrier_unit, health_timer, health_unit
from hyperpod_kit.node import names, systemd, users
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.health.look import check
from hyperpod_kit.node.mounts.ensure import await_healthy
from hyperpod_kit.node.mounts.kinds import kind_of
from hyperpod_kit.node.mounts.mountpoint_s3 import allow_other_users
from hyperpod_kit.node.slurm import controller, plugin, worker

OCCUPIED = ("wrong_target", "readonly", "full", "unknown")
"""States in which something lives at the path that starting a unit would not change."""


@dataclass(frozen=True)
class Outcome:
    """What a step did."""

    changed: bool = False
    detail: str = ""


@dataclass(frozen=True)
class Step:
    """One kind of step. `run(node, subject)`: the subject is a mount's name, or "" for a step about the whole node.

    each_mount: once for every mount of the role; roles, modes: where and when it is needed;
    required: a failure fails the node (a mount's own `required` overrules it);
    after_success: not run once a required step has failed: a node without its data must not join Slurm.
    """

    name: str
    run: Callable[[Node, str], Outcome]
    each_mount: bool = False
    required: bool = True
    after_success: bool = False
    roles: Tuple[str, ...] = ("controller", "login", "compute")
    modes: Tuple[str, ...] = ("on_create", "on_init_complete")


def wait_for_names(node: Node, _: str) -> Outcome:
    names.wait_until_resolvable(node)
    return Outcome()


def create_users(node: Node, _: str) -> Outcome:
    created = [user.name for user in node.config.users if users.ensure_user(node, user)]
    return Outcome(bool(created), f"created {', '.join(created)}" if created else "")


def allow_fuse_users(node: Node, _: str) -> Outcome:
    any_s3 = any(isinstance(mount, S3Mount) for mount in node.config.mounts_for(node.facts.role))
    return Outcome(any_s3 and allow_other_users(node))


def make_mount(node: Node, name: str) -> Outcome:
    """Install, enable and start the mount's unit, and wait until the mount answers. The unit outlives the reboot."""
    mount = node.mount(name)
    unit = carrier_unit(mount)
    new_unit = systemd.install(node, [unit])
    changed = systemd.enable(node, unit) or new_unit
    status = check(node, mount)
    running = systemd.is_active(node, unit)
    # A daemon of ours under an old unit: another bucket or other options. Nobody else's is ever stopped.
    outdated = new_unit and running and isinstance(mount, S3Mount)
    if status.healthy and running and not outdated:
        return Outcome(changed, f"{status.source} {status.detail}".strip())
    if status.state in OCCUPIED and not outdated:
        raise MountFailed(f"{mount.path} is {status.state} ({status.source}): {status.detail}",
                          hint=f"on the node: findmnt {mount.path}; or hyperpod-kit replace-node {node.facts.node}")
    return _bring_up(node, mount, "restart" if running else "start")


def _bring_up(node: Node, mount: Mount, verb: str) -> Outcome:
    unit = carrier_unit(mount)
    said: Optional[str] = None
    try:
        node.runner.run(["systemctl", verb, unit], timeout=200)
    except RunError as err:
        said = systemd.last_words(node, unit) or err.message
    # The daemon's unit goes on trying by itself, the one-shot has tried for long enough.
    patience = 60.0 if said is None or isinstance(mount, S3Mount) else 0.0
    try:
        status = await_healthy(node, mount, seconds=patience)
    except MountFailed as err:
        kind = kind_of(mount)
        if not os.path.exists(node.paths.real(kind.client)):
            raise MountFailed(f"{kind.client} is not installed on this node",
                              hint=f"use an AMI with {kind.package}, or install it before this bundle runs") from err
        raise MountFailed(said or err.message, hint=f"on the node: journalctl -u {unit}") from err
    return Outcome(True, status.source)


def watch_mount(node: Node, name: str) -> Outcome:
    mount = node.mount(name)
    timer = health_timer(mount)
    changed = systemd.install(node, [health_unit(mount), timer])
    changed = systemd.enable(node, timer) or changed
    return Outcome(systemd.start(node, timer, timeout=30) or changed)


def build_plugin(node: Node, _: str) -> Outcome:
    return Outcome(plugin.build(node))


def install_hooks(node: Node, _: str) -> Outcome:
    changed, notes = controller.install_hooks(node)
    return Outcome(changed, "; ".join(notes))


def start_controller(node: Node, _: str) -> Outcome:
    return Outcome(controller.start_controller(node))


def start_worker(node: Node, _: str) -> Outcome:
    return Outcome(worker.start_worker(node), f"registered with {node.facts.controller_address}")


STEPS = (
    Step("names", wait_for_names, required=False),
    Step("users", create_users),
    Step("fuse", allow_fuse_users),
    Step("mount", make_mount, each_mount=True),
    Step("health", watch_mount, each_mount=True),
    # Without it, `hyperpod-kit job submit --auto-resume` still works.
    Step("spank-plugin", build_plugin, required=False),
    Step("slurm-hooks", install_hooks, roles=("controller",), after_success=True),
    # In on_init_complete mode HyperPod has started Slurm, and restarting slurmd there would undo its configuration.
    Step("slurm-controller", start_controller, roles=("controller",), modes=("on_create",), after_success=True),
    Step("slurm-worker", start_worker, roles=("compute", "login"), modes=("on_create",), after_success=True),
)
