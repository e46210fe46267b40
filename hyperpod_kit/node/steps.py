"""The steps of a node's creation, in order. Read `STEPS` from top to bottom: that is what happens.

Each step is idempotent and bounded, and says whether it changed anything. Which of them this node needs is decided in
plan.py, running them is provision.py's.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Tuple

from hyperpod_kit.model.mounts import S3Mount
from hyperpod_kit.model.units import carrier_unit, health_timer, units_for
from hyperpod_kit.node import names, systemd, users
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.mounts.bring_up import bring_up
from hyperpod_kit.node.mounts.mountpoint_s3 import allow_other_users
from hyperpod_kit.node.slurm import controller, plugin, worker


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


def install_units(node: Node, _: str) -> Outcome:
    """Install and enable every unit of this role: they make the mounts at a reboot, when no lifecycle script runs."""
    mounts = node.config.mounts_for(node.facts.role)
    changed = systemd.install(node, [unit for mount in mounts for _, unit in units_for(mount)])
    enabled = [unit for mount in mounts for unit in (carrier_unit(mount), health_timer(mount))]
    return Outcome(systemd.enable(node, *enabled) or changed)


def make_mount(node: Node, name: str) -> Outcome:
    return Outcome(*bring_up(node, node.mount(name)))


def watch_mounts(node: Node, _: str) -> Outcome:
    timers = [health_timer(mount) for mount in node.config.mounts_for(node.facts.role)]
    return Outcome(systemd.start(node, *timers, timeout=30))


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
    Step("units", install_units),
    Step("mount", make_mount, each_mount=True),
    Step("health", watch_mounts),
    # Without it, `hyperpod-kit job submit --auto-resume` still works.
    Step("spank-plugin", build_plugin, required=False),
    Step("slurm-hooks", install_hooks, roles=("controller",), after_success=True),
    # In on_init_complete mode HyperPod has started Slurm, and restarting slurmd there would undo its configuration.
    Step("slurm-controller", start_controller, roles=("controller",), modes=("on_create",), after_success=True),
    Step("slurm-worker", start_worker, roles=("compute", "login"), modes=("on_create",), after_success=True),
)
