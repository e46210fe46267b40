"""The steps of a node's creation, in order. Read `STEPS` from top to bottom: that is what happens.

Each step is idempotent and bounded, and says whether it changed anything. Which of them this node needs is decided in
plan.py, running them is apply.py's.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Tuple

from hyperpod_kit.errors import MountFailed, NodeError
from hyperpod_kit.model.cluster import LIFECYCLE_MODES
from hyperpod_kit.model.mounts import ROLES, S3Mount
from hyperpod_kit.model.units import (
    HEALTH_TIMER,
    MEMORY_TIMER,
    ONLY,
    SECRETS_UNIT,
    SWEEP_TIMER,
    carrier_unit,
    units_of,
)
from hyperpod_kit.node import containers, homes, names, packet_rules, retire, systemd, users
from hyperpod_kit.node.clients import install as clients
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.mounts import bring_up
from hyperpod_kit.node.mounts.kinds.mountpoint_s3 import allow_other_users, other_users_may
from hyperpod_kit.node.secrets import keep as secrets
from hyperpod_kit.node.slurm import controller, plugin, worker


@dataclass(frozen=True)
class Outcome:
    """What a step did."""

    changed: bool = False
    detail: str = ""


def nothing(node: Node, subject: str) -> str:
    """What a step that only waits would change."""
    return ""


@dataclass(frozen=True)
class Step:
    """One kind of step. `run(node, subject)`: the subject is a mount's name, or "" for a step about the whole node.

    pending: what `run` would change now, in words; "" when nothing. It reads and asks, and changes nothing.
    each_mount: once for every mount of this node; roles, modes: where and when it is needed;
    required: a failure fails the node (a mount's own `required` overrules it);
    after_success: not run once a required step has failed: a node without its data must not join Slurm.
    """

    name: str
    run: Callable[[Node, str], Outcome]
    pending: Callable[[Node, str], str] = nothing
    each_mount: bool = False
    required: bool = True
    after_success: bool = False
    roles: Tuple[str, ...] = ROLES
    modes: Tuple[str, ...] = LIFECYCLE_MODES


def wait_for_names(node: Node, _: str) -> Outcome:
    names.wait_until_resolvable(node)
    return Outcome()


def create_users(node: Node, _: str) -> Outcome:
    created = [user.name for user in node.config.users if users.ensure_user(node, user)]
    return Outcome(bool(created), f"created {', '.join(created)}" if created else "")


def users_pending(node: Node, _: str) -> str:
    missing = [user.name for user in node.config.users if not users.is_there(node, user)]
    return f"create {', '.join(missing)}" if missing else ""


def keep_secrets(node: Node, _: str) -> Outcome:
    changed = secrets.keep(node)
    return Outcome(bool(changed), ", ".join(changed))


def secrets_pending(node: Node, _: str) -> str:
    missing = secrets.missing(node)
    return f"fetch {', '.join(missing)}" if missing else ""


def see_to_clients(node: Node, _: str) -> Outcome:
    return Outcome(*clients.install_clients(node))


def clients_pending(node: Node, _: str) -> str:
    return clients.pending(node)


def any_s3(node: Node) -> bool:
    return any(isinstance(mount, S3Mount) for mount in node.mounts)


def allow_fuse_users(node: Node, _: str) -> Outcome:
    return Outcome(any_s3(node) and allow_other_users(node))


def fuse_pending(node: Node, _: str) -> str:
    return "user_allow_other in /etc/fuse.conf" if any_s3(node) and not other_users_may(node) else ""


def retire_earlier(node: Node, _: str) -> Outcome:
    changed, notes = retire.retire(node)
    return Outcome(changed, "; ".join(notes))


def retire_pending(node: Node, _: str) -> str:
    return retire.pending(node)


def timers(node: Node) -> List[str]:
    """What runs again and again."""
    return [HEALTH_TIMER, *(unit for unit in (SWEEP_TIMER, MEMORY_TIMER) if ONLY[unit] == node.facts.role)]


def at_boot(node: Node) -> List[str]:
    """The units that start by themselves."""
    return [
        *(carrier_unit(mount) for mount in node.mounts),
        *timers(node),
        *([SECRETS_UNIT] if secrets.secrets_of(node) else []),
    ]


def install_units(node: Node, _: str) -> Outcome:
    """Install and enable every unit of this node: they make the mounts at a reboot, when no lifecycle script runs."""
    retire.carry(node)
    bring_up.note_running(node, node.mounts)
    return Outcome(systemd.install(node, units_of(node.mounts, node.facts.role), at_boot(node)))


def units_pending(node: Node, _: str) -> str:
    units = units_of(node.mounts, node.facts.role)
    installing = systemd.outdated(node, units)
    # A unit that is not there yet cannot be asked about.
    enabling = [unit for unit in at_boot(node) if unit not in installing and not systemd.is_enabled(node, unit)]
    words = [
        f"install {', '.join(installing)}" if installing else "",
        f"enable {', '.join(enabling)}" if enabling else "",
        "daemon-reload" if not installing and systemd.must_reload(node, units) else "",
    ]
    return "; ".join(word for word in words if word)


def set_packet_rules(node: Node, _: str) -> Outcome:
    try:
        return Outcome(packet_rules.guard(node))
    except NodeError as err:
        if packet_rules.wanted(node).required:
            raise
        return Outcome(detail=f"not set: {err.message}")


def packet_rules_pending(node: Node, _: str) -> str:
    return "set them" if packet_rules.could(node) and not packet_rules.is_guarded(node) else ""


def make_mount(node: Node, name: str) -> Outcome:
    return Outcome(*bring_up.bring_up(node, node.mount(name)))


def mount_pending(node: Node, name: str) -> str:
    mount = node.mount(name)
    try:
        return bring_up.pending(node, mount)
    except MountFailed:
        if any(old.path == mount.path for old in retire.leaving(node)):
            return f"start {carrier_unit(mount)}"  # what lies there now goes before
        raise


def settle_homes(node: Node, _: str) -> Outcome:
    done = homes.settle(node)
    return Outcome(bool(done), "; ".join(done))


def homes_pending(node: Node, _: str) -> str:
    return homes.pending(node)


def watch_mounts(node: Node, _: str) -> Outcome:
    return Outcome(any([systemd.start(node, unit, timeout=30) for unit in timers(node)]))


def watch_pending(node: Node, _: str) -> str:
    resting = [unit for unit in timers(node) if not systemd.is_active(node, unit)]
    return f"start {', '.join(resting)}" if resting else ""


def show_to_containers(node: Node, _: str) -> Outcome:
    return Outcome(containers.show(node))


def containers_pending(node: Node, _: str) -> str:
    return containers.pending(node)


def build_plugin(node: Node, _: str) -> Outcome:
    return Outcome(plugin.build(node))


def plugin_pending(node: Node, _: str) -> str:
    return "" if plugin.is_built(node) else f"build {node.paths.spank_plugin}"


def install_hooks(node: Node, _: str) -> Outcome:
    changed, notes = controller.install_hooks(node)
    return Outcome(changed, "; ".join(notes))


def hooks_pending(node: Node, _: str) -> str:
    return controller.hooks_pending(node)


def start_controller(node: Node, _: str) -> Outcome:
    return Outcome(controller.start_controller(node))


def controller_pending(node: Node, _: str) -> str:
    return controller.daemons_pending(node)


def start_worker(node: Node, _: str) -> Outcome:
    return Outcome(worker.start_worker(node), f"registered with {node.facts.controller_address}")


def worker_pending(node: Node, _: str) -> str:
    return worker.pending(node)


SCRIPTED = ("on_create", "on_init_complete")
"""Modes in which HyperPod itself starts our script. In ami_only mode somebody may run it by hand, and Slurm's
configuration stays HyperPod's alone."""

STEPS = (
    Step("names", wait_for_names, required=False),
    Step("users", create_users, users_pending),
    Step("secrets", keep_secrets, secrets_pending),
    Step("clients", see_to_clients, clients_pending),
    Step("fuse", allow_fuse_users, fuse_pending),
    # Old mounts go first: a renamed mount uses the same path.
    Step("retire", retire_earlier, retire_pending),
    Step("units", install_units, units_pending),
    Step("packet-rules", set_packet_rules, packet_rules_pending),
    Step("mount", make_mount, mount_pending, each_mount=True),
    Step("homes", settle_homes, homes_pending),
    Step("health", watch_mounts, watch_pending),
    # Always: enroot may be installed later, and does nothing with it until then.
    Step("containers", show_to_containers, containers_pending, required=False),
    # Without it, `hyperpod-kit job submit --auto-resume` still works.
    Step("spank-plugin", build_plugin, plugin_pending, required=False, modes=SCRIPTED),
    Step("slurm-hooks", install_hooks, hooks_pending, roles=("controller",), modes=SCRIPTED, after_success=True),
    # In on_init_complete mode HyperPod has started Slurm, and restarting slurmd there would undo its configuration.
    Step(
        "slurm-controller",
        start_controller,
        controller_pending,
        roles=("controller",),
        modes=("on_create",),
        after_success=True,
    ),
    Step(
        "slurm-worker",
        start_worker,
        worker_pending,
        roles=("compute", "login"),
        modes=("on_create",),
        after_success=True,
    ),
)
