"""Makes the training environment, once for all nodes that share its directory: one node makes it, the others wait.

Who makes it has a lease (node/slurm/lease.py) and shows every few seconds that it is alive; when it falls silent,
another node takes the lease, removes what was left and begins anew. A lease only keeps nodes from doing the same work
at once: that two makers do no harm follows from the layout (versions.py).

All of this runs as the owner of the environment, in a child of `node apply`: no package is ever run as root, and a
shared mount may refuse root. Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, List, Tuple

from hyperpod_kit.errors import HyperpodKitError, NodeError, RunError, RunTimeout
from hyperpod_kit.node.environments import versions
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.slurm import lease
from hyperpod_kit.node.slurm.lease import LeaseOwner
from hyperpod_kit.run import LocalRunner, Runner
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor, walk
from hyperpod_kit.untrusted.text import clean_one_line

Report = Callable[[str], None]

_FAILURE = "failure"
"""File in the lease's directory: why the last attempt failed, for the nodes that wait for it."""
_FAILURES = 2
"""Attempts of other nodes that may fail before a node that waits gives up: one may fail for a reason of its own."""
_PAUSE = 2.0
_INTERPRETER_SECONDS = 60.0
_INTERPRETER = "import json, sys; print(json.dumps(list(sys.version_info[:2])))"


@dataclass(frozen=True)
class EnvironmentSpec:
    """What is to be made, where, and by whom.

    machine: as `uname -m` has it; lock: path of the lock file; lock_digest: its SHA-256; wheel: path of the kit's
    wheel; uv: path of uv, "" for venv and pip; node: this machine; timeout: seconds for all of it; takeover: seconds
    after which a maker that does not show that it is alive has died.
    """

    directory: str
    machine: str
    lock: str
    lock_digest: str
    wheel: str
    python: str
    uv: str
    node: LeaseOwner
    timeout: float
    takeover: float = lease.TAKEOVER

    @property
    def kit_version(self) -> str:
        """Version of the wheel, which its name has."""
        return os.path.basename(self.wheel).split("-")[1]

    @property
    def lease_directory(self) -> str:
        return f"{self.directory}/.lease-{self.machine}"


@dataclass(frozen=True)
class EnsuredVersion:
    """The version that jobs get now. made: by this node, just now; moved: whether the link led elsewhere before."""

    path: str
    made: bool
    moved: bool


def ensure_version(spec: EnvironmentSpec, report: Report) -> Dict[str, Any]:
    """Find the complete version, or make it, or wait for the node that makes it; then check it and have the link lead
    to it. Returns an EnsuredVersion as a dict, for a caller in another process. `report`: gets lines for a log.

    Raises NodeError.
    """
    runner = LocalRunner()
    digest = environment_digest(spec, runner)
    end = time.monotonic() + spec.timeout
    _make_directories(spec)
    version = versions.find_complete_version(spec.directory, spec.machine, digest)
    made = False
    if not version:
        version, made = _make_or_await_version(spec, digest, end, runner, report)
    versions.require_usable_version(runner, version, spec.kit_version)
    moved = versions.point_link(spec.directory, spec.machine, version)
    return asdict(EnsuredVersion(version, made, moved))


def describe_pending(spec: EnvironmentSpec) -> str:
    """Return what `ensure_version` would do now, in words; "" for nothing. Raises NodeError."""
    digest = environment_digest(spec, LocalRunner())
    version = versions.find_complete_version(spec.directory, spec.machine, digest)
    if not version:
        return f"make a version of {spec.directory} for {spec.machine}"
    if versions.linked_version(spec.directory, spec.machine) != version:
        return f"have {spec.directory}/{spec.machine} lead to {os.path.basename(version)}"
    return ""


def environment_digest(spec: EnvironmentSpec, runner: Runner) -> str:
    """Return the digest of all that decides what is in the environment. Raises NodeError."""
    try:
        output = runner.run(
            versions.clean_command([spec.python, "-I", "-c", _INTERPRETER]), timeout=_INTERPRETER_SECONDS
        ).stdout
        interpreter_version = [int(number) for number in json.loads(output)]
    except (RunError, ValueError, TypeError) as err:
        raise NodeError(
            f"{spec.python} cannot be run: {clean_one_line(getattr(err, 'message', err))}",
            hint="choose an interpreter that the nodes have: hyperpod_kit.steps.training_environment.python",
        ) from err
    parts = [spec.machine, spec.python, interpreter_version, spec.lock_digest, os.path.basename(spec.wheel)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _make_directories(spec: EnvironmentSpec) -> None:
    """Make the directories, in one in which no other user can exchange them. Raises NodeError."""
    place = os.path.dirname(spec.directory)
    try:
        by_descriptor.make_directories(place, 0o755, shared=True)
        status = os.stat(place)
        others_write = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or others_write:
            raise NodeError(
                f"{place} belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}: other users "
                "could replace the training environment of all jobs",
                hint=f"give {place} to the `owner` of the configuration, or choose another `path`",
            )
        for path in (spec.directory, f"{spec.directory}/{versions.VERSIONS}", spec.lease_directory):
            by_descriptor.make_directories(path, 0o755)
    except NodeError:
        raise
    except (HyperpodKitError, OSError) as err:
        reason = getattr(err, "message", None) or str(err)
        raise NodeError(
            f"the owner of the training environment cannot create its directory: {clean_one_line(reason)}",
            hint=f"install -d -o USER {place}, where USER is `owner` in the configuration",
        ) from err


def _make_or_await_version(
    spec: EnvironmentSpec, digest: str, end: float, runner: Runner, report: Report
) -> Tuple[str, bool]:
    """Return the path of the complete version, and whether this node has made it. Raises NodeError."""
    watch = _LeaseWatch(spec)
    made = False
    while True:
        version = versions.find_complete_version(spec.directory, spec.machine, digest)
        if version:
            return version, made
        watch.raise_if_maker_failed()
        generation = watch.try_take()
        if generation:
            made = _make_under_lease(spec, digest, generation, end, runner, report)
            continue
        if time.monotonic() > end:
            raise NodeError(
                f"no complete version within {spec.timeout:g} s: {watch.maker_name()} has been making it",
                hint="hyperpod-kit node apply waits again; `timeout` in the configuration covers the whole step",
            )
        time.sleep(_PAUSE)


class _LeaseWatch:
    """Watches the node that makes the environment, until it is done, has failed or has died."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._directory = spec.lease_directory
        self._seen: Any = None
        self._seen_at = time.monotonic()
        self._last_failure = self._failure()
        self._failures = 0

    def try_take(self) -> int:
        """Take the lease if nobody has it, or its owner has been silent for too long; its generation, 0 if not."""
        generation = (lease.list_owner_generations(self._directory) or [0])[-1]
        if lease.is_free_to_take_at_once(self._directory, generation, self._spec.node):
            return lease.try_take_and_delete_older(self._directory, generation, self._spec.node)
        seen = (generation, lease.read_heartbeat(self._directory, generation))
        if seen != self._seen:
            self._seen, self._seen_at = seen, time.monotonic()
        if time.monotonic() - self._seen_at < self._spec.takeover:
            return 0
        return lease.try_take_and_delete_older(self._directory, generation, self._spec.node)

    def maker_name(self) -> str:
        """Name of the node that has the lease."""
        generation = (lease.list_owner_generations(self._directory) or [0])[-1]
        owner = lease.read_owner(self._directory, generation)
        if owner is None:
            return "another node"
        return clean_one_line(owner.host)

    def raise_if_maker_failed(self) -> None:
        """Raises NodeError when enough attempts have failed since this node began to wait: so would another."""
        failure = self._failure()
        if failure == self._last_failure:
            return
        self._last_failure = failure
        self._failures += 1
        if self._failures >= _FAILURES:
            raise NodeError(clean_one_line(failure), hint="fix that, then on one node: hyperpod-kit node apply")

    def _failure(self) -> str:
        return read_text(f"{self._directory}/{_FAILURE}") or ""


def _make_under_lease(
    spec: EnvironmentSpec, digest: str, generation: int, end: float, runner: Runner, report: Report
) -> bool:
    """Make the version unless it is complete by now, and release the lease. Returns whether it was made: not when
    another node has taken the lease meanwhile; what failed then failed because that node has removed it.

    Raises NodeError, which the nodes that wait read too.
    """
    try:
        # Another node may have completed it and released the lease a moment ago.
        if versions.find_complete_version(spec.directory, spec.machine, digest):
            return False
        with _heartbeats(spec, generation):
            return _make_version(spec, digest, generation, end, runner, report)
    except (HyperpodKitError, OSError) as err:
        if not _has_lease(spec, generation):
            return False
        reason = getattr(err, "message", None) or str(err)
        failure = f"{spec.node.host}: {clean_one_line(reason)} (attempt {os.urandom(4).hex()})"
        with contextlib.suppress(OSError, HyperpodKitError):
            atomic_file.write_atomically(f"{spec.lease_directory}/{_FAILURE}", failure.encode(), 0o644)
        raise NodeError(reason, hint=getattr(err, "hint", None)) from err
    finally:
        with contextlib.suppress(OSError, HyperpodKitError):
            if _has_lease(spec, generation):
                lease.release(spec.lease_directory, generation)


def _has_lease(spec: EnvironmentSpec, generation: int) -> bool:
    return lease.list_owner_generations(spec.lease_directory)[-1:] == [generation]


@contextlib.contextmanager
def _heartbeats(spec: EnvironmentSpec, generation: int) -> Iterator[None]:
    """Show during the block that this node is alive."""
    ended = threading.Event()

    def beat() -> None:
        count = 0
        while not ended.wait(min(lease.RENEW, spec.takeover / 4)):
            count += 1
            with contextlib.suppress(OSError, HyperpodKitError):
                if not lease.write_heartbeat_if_still_owner(spec.lease_directory, generation, str(count)):
                    return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(lease.RENEW)


def _make_version(
    spec: EnvironmentSpec, digest: str, generation: int, end: float, runner: Runner, report: Report
) -> bool:
    versions.remove_unfinished_versions(spec.directory, spec.machine)
    name = f"{spec.machine}-{digest}-{os.urandom(4).hex()}"
    path = f"{spec.directory}/{versions.VERSIONS}/{name}"
    by_descriptor.make_directory(path, 0o755)
    handle = walk.open_directory(path)
    try:
        for command in _commands(spec, path):
            _run_step(command, end, runner, report)
        versions.require_usable_version(runner, path, spec.kit_version)
        if not lease.write_heartbeat_if_still_owner(spec.lease_directory, generation, "complete"):
            return False
        # By the descriptor: where another node has renamed the directory, the file does not complete a new one.
        atomic_file.write_atomically_in_directory(handle, versions.COMPLETE, digest.encode(), 0o644, durable=True)
    except NodeError:
        by_descriptor.remove_tree(path, ignore_errors=True)
        raise
    finally:
        os.close(handle)
    return True


def _run_step(command: List[str], end: float, runner: Runner, report: Report) -> None:
    started = time.monotonic()
    try:
        output = runner.run(versions.clean_command(command), timeout=max(1.0, end - started))
    except RunTimeout as err:
        raise NodeError(
            f"the step timed out during: {' '.join(command[:6])}",
            hint=(
                "raise hyperpod_kit.steps.training_environment.timeout, or keep wheels closer to the nodes "
                "(--find-links)"
            ),
        ) from err
    except RunError as err:
        report(f"$ {' '.join(command)}\n{err.stdout}{err.stderr}exit {err.returncode}\n")
        raise NodeError(f"{os.path.basename(command[0])}: {versions.tail_of_output(err)}") from err
    seconds = time.monotonic() - started
    report(f"$ {' '.join(command)}\n{output.stdout}{output.stderr}{seconds:.1f} s\n")


def _commands(spec: EnvironmentSpec, path: str) -> List[List[str]]:
    """Return the commands that make the environment. Nothing is built from source unless the lock says so by
    `--no-binary`: what a build needs has no hash there."""
    synchronize = ["sync", "-f", path]
    if spec.uv:
        install = [spec.uv, "pip", "install", "--python", f"{path}/bin/python", "--no-cache", "--no-progress"]
        install += ["--link-mode", "copy", "--compile-bytecode"]
        return [
            [spec.uv, "venv", "--no-python-downloads", "--no-project", "--python", spec.python, path],
            [*install, "--require-hashes", "--only-binary", ":all:", "-r", spec.lock],
            [*install, "--no-deps", "--offline", spec.wheel],
            synchronize,
        ]
    install = [f"{path}/bin/python", "-I", "-m", "pip", "install", "--no-input", "--no-cache-dir"]
    install += ["--disable-pip-version-check", "--progress-bar", "off"]
    return [
        [spec.python, "-I", "-m", "venv", path],
        [*install, "--require-hashes", "--only-binary", ":all:", "-r", spec.lock],
        [*install, "--no-deps", "--no-index", spec.wheel],
        synchronize,
    ]
