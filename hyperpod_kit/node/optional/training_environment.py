"""A Python environment for jobs, with this bundle's wheel of the kit in it, made from a lock file of the bundle.

This module runs as root, and touches the environment only in children: one that makes the directory for the owner, and
one that is the owner and makes and checks the rest (environments/maker.py). Nothing of the environment runs as root.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import pwd
from functools import partial
from typing import IO, Optional

from hyperpod_kit.errors import HyperpodKitError, NodeError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.optional_steps import TrainingEnvironment, requirements_bundle_path
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.environments import maker
from hyperpod_kit.node.environments.maker import EnsuredVersion, EnvironmentSpec
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import write_if_different
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.observe.check import check_mount
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.slurm.lease import LeaseOwner
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.untrusted import by_descriptor, owner
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from hyperpod_kit.untrusted.text import replace_unprintable_in_lines

UV = ("/usr/local/bin/uv", "/usr/bin/uv")
LOG = "/var/log/provision/training-environment.log"
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64"}
"""What `uname -m` says -> the architecture as the configuration has it."""

_DIRECTORY_SECONDS = 30.0
_PENDING_SECONDS = 120.0
_AFTER_DEADLINE = 60.0
"""Seconds that the owner's child has beyond its own deadline, by which it ends with a reason."""


def _configuration(node: Node) -> TrainingEnvironment:
    configuration = node.config.steps.training_environment
    assert configuration is not None, "the step is on"
    return configuration


def _environment_spec(node: Node) -> EnvironmentSpec:
    """What this node needs. Raises NodeError."""
    configuration = _configuration(node)
    machine = os.uname().machine
    # The bundle's own directory: `current` may lead to another one before this ends.
    bundle = os.path.realpath(node.paths.bundle)
    lock = f"{bundle}/{requirements_bundle_path(ARCHITECTURES.get(machine, machine))}"
    try:
        with open(lock, "rb") as stream:
            lock_digest = hashlib.sha256(stream.read()).hexdigest()
    except FileNotFoundError:
        raise NodeError(
            f"the bundle has no requirements for {machine}",
            hint="add them to hyperpod_kit.steps.training_environment.requirements, then: hyperpod-kit upload",
        ) from None
    wheels = glob.glob(f"{glob.escape(bundle)}/lib/hyperpod_kit-*.whl")
    if len(wheels) != 1:
        raise NodeError(f"{bundle}/lib has {len(wheels)} wheels of the kit, expected 1")
    uv = next((path for path in map(node.paths.under_root, UV) if os.access(path, os.X_OK)), "")
    return EnvironmentSpec(
        node.paths.under_root(configuration.directory),
        machine,
        lock,
        lock_digest,
        wheels[0],
        configuration.python,
        uv,
        LeaseOwner(node.facts.instance_id or node.facts.node, node.facts.node),
        configuration.timeout,
    )


def _owner_uid(configuration: TrainingEnvironment) -> int:
    """Return the uid of the owner, or of this process, which can be nobody else, where it is not root."""
    if os.geteuid():
        return os.geteuid()
    try:
        return pwd.getpwnam(configuration.owner).pw_uid
    except KeyError:
        raise NodeError(
            f"this node has no user {configuration.owner}, the owner of the training environment",
            hint="add the user to hyperpod_kit.users, or name another `owner`",
        ) from None


def _mount_with_environment(node: Node, path: str) -> Optional[Mount]:
    """Return the mount that `path` is on; None for this node's own disk."""
    mounts = [mount for mount in node.mounts if f"{path}/".startswith(f"{mount.path.rstrip('/')}/")]
    return max(mounts, key=lambda mount: len(mount.path), default=None)


def _require_mount_serves(node: Node, path: str) -> None:
    """Raises NodeError when the environment would lie below a mount point without its mount."""
    mount = _mount_with_environment(node, path)
    if mount is not None and not check_mount(node, mount).healthy:
        raise NodeError(
            f"the mount {mount.name} of {path} does not work", hint=f"hyperpod-kit node mounts {mount.name}"
        )


def _make_directory_for_owner(path: str, uid: int) -> bool:
    """Make the directory, and give it to the owner; False where it is there, or where the file system refuses root:
    then the owner makes it. To be called in a child. Raises Untrusted, OSError."""
    try:
        by_descriptor.make_parents(path)
        by_descriptor.make_directory(path, 0o755)
    except (FileExistsError, PermissionError):
        return False
    try:
        by_descriptor.set_owner(path, uid, -1)
    except PermissionError:  # root_squash: it is nobody's
        by_descriptor.remove_directory(path)
        return False
    return True


def _apply_training_environment(node: Node) -> StepOutcome:
    try:
        outcome = _ensure_version(node)
    except (HyperpodKitError, OSError) as err:
        reason = str(getattr(err, "message", err))
        write_if_different(node.paths.training_environment_failure, reason + "\n")
        if isinstance(err, HyperpodKitError):
            raise
        raise NodeError(reason, hint="hyperpod-kit node mounts; then: hyperpod-kit node apply") from err
    _delete_failure_note(node)
    return outcome


def _ensure_version(node: Node) -> StepOutcome:
    configuration = _configuration(node)
    spec = _environment_spec(node)
    uid = _owner_uid(configuration)
    _require_mount_serves(node, configuration.path)
    path = node.paths.under_root(configuration.path)
    call_in_child(path, partial(_make_directory_for_owner, path, uid), _DIRECTORY_SECONDS)
    log = node.paths.under_root(LOG)
    by_descriptor.make_parents(log)
    with by_descriptor.open_stream_for_writing(log, "w", encoding="utf-8") as stream:
        longest = spec.timeout + _AFTER_DEADLINE
        raw = owner.run_as_user_with_reports(
            spec.directory,
            uid,
            partial(maker.ensure_version, spec),
            lambda text: _write_to_log(stream, text),
            owner.OwnerLimits(longest, longest),
        )
    version = dataclass_from_json(EnsuredVersion, raw)
    link = f"{configuration.directory}/{spec.machine}"
    if version.made:
        return StepOutcome(True, f"made {version.path}; {link} points to it")
    if version.moved:
        return StepOutcome(True, f"{link} leads to {version.path}")
    return StepOutcome(detail=f"{link} leads to {version.path}")


def _write_to_log(stream: IO[str], text: object) -> None:
    stream.write(replace_unprintable_in_lines(str(text)))
    stream.flush()


def _describe_pending_changes(node: Node) -> str:
    configuration = _configuration(node)
    spec = _environment_spec(node)
    _require_mount_serves(node, configuration.path)
    limits = owner.OwnerLimits(_PENDING_SECONDS, _PENDING_SECONDS)
    work = partial(maker.describe_pending, spec)
    return str(owner.run_as_user_in_child(work, _owner_uid(configuration), spec.directory, limits))


def _delete_failure_note(node: Node) -> None:
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.training_environment_failure)


def _undo_training_environment(node: Node) -> str:
    _delete_failure_note(node)
    return "environments are no longer made or checked; existing environments are kept"


STEP = OptionalStep(
    "training_environment",
    _apply_training_environment,
    _describe_pending_changes,
    _undo_training_environment,
    after_success=True,
    roles=(Role.LOGIN, Role.COMPUTE),
)
