"""`up`: from nothing to a serving daemon, or back to nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, Sequence

import hyperpod_kit
import hyperpod_rehearsal
from hyperpod_kit.errors import NotUp, RehearsalError
from hyperpod_kit.system.file_lock import lock_exclusively_within
from hyperpod_kit.system.process import identify_unless_gone_or_zombie, is_alive
from hyperpod_kit.system.wait import fixed_pause
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal import cleanup
from hyperpod_rehearsal.machines import host, image
from hyperpod_rehearsal.machines.image import Progress
from hyperpod_rehearsal.records import state, trusted_directory
from hyperpod_rehearsal.records.layout import (
    NAME_PATTERN,
    Layout,
    cache_dir,
    existing_rehearsals,
    lock_file_path_with_directory_made,
)
from hyperpod_rehearsal.records.profiles import STOCK, Profile
from hyperpod_rehearsal.records.settings import RehearsalSettings, parse_share, resolve_tree_directory

START_DEADLINE = 60.0
LOCK_PATIENCE = 90.0
"""Seconds that one command waits for another that is starting or stopping the same rehearsal."""


@contextmanager
def _rehearsal_lock(layout: Layout, patience: float = LOCK_PATIENCE) -> Iterator[None]:
    """Hold the lock of a rehearsal, so that one `up` or `down` runs at a time.

    Raises RehearsalError when another command does not release it within `patience` seconds.
    """
    with by_descriptor.open_stream_for_writing(
        lock_file_path_with_directory_made(f"rehearsal-{layout.id}"), "w"
    ) as handle:
        if not lock_exclusively_within(handle.fileno(), patience, fixed_pause(0.1)):
            raise RehearsalError(
                f"another command has been starting or stopping rehearsal {layout.root.name} for {patience:.0f} s",
                hint="see what it says, or end it",
            )
        yield


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt within the block, so that a start cleans up after itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP within the block, so that a clean-up is finished once it has begun."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handlers = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def is_daemon_ready(layout: Layout) -> bool:
    """Return whether the rehearsal's daemon is alive and ready."""
    ready = state.read_own_json_object_or_none(layout.ready_file)
    return bool(ready and "endpoint" in ready) and is_alive(state.read_process_identity_or_none(layout.daemon_file))


def require_running(name: str) -> tuple[Layout, Dict[str, Any]]:
    """Layout and state.json of a rehearsal that is up. Raises RehearsalError when it is not."""
    host.require_root(f"rehearsal {name}")
    layout = Layout.for_name(name)
    trusted_directory.require_trusted(layout.root)
    data = state.read_own_json_object_or_none(layout.state_file)
    if data is None or not is_daemon_ready(layout):
        names = [other.root.name for other in existing_rehearsals() if is_daemon_ready(other)]
        running_names = ""
        if names:
            running_names = f"; up are: {', '.join(names)}"
        raise NotUp(f"rehearsal {name} is not up{running_names}", hint="hyperpod-kit rehearse up")
    return layout, data


def start_rehearsal(
    name: str,
    shares: Sequence[str],
    progress: Progress,
    *,
    cred_expire: int = 10,
    slurmd_timeout: int = 30,
    shm_size: str = "2G",
    release: str = "",
    trees: Sequence[str] = (),
    profile: Profile = STOCK,
) -> tuple[Layout, bool]:
    """Start a rehearsal; returns its layout and whether it was started now (False: it was up already).

    `release`: code name of the nodes' distribution release, the profile's when empty; `trees`: directories whose
    content every node has besides; `profile`: what kind of cluster it is.
    Whatever a dead daemon of that name left is removed first. Raises RehearsalError with the reason; then, and on
    Ctrl-C, nothing is left behind.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise RehearsalError(f"a rehearsal's name has lower-case letters, digits and -, at most 31: {name!r}")
    host.require_rehearsal_support()
    parsed = tuple(parse_share(share) for share in shares)
    laid_over = tuple(resolve_tree_directory(tree) for tree in trees)
    layout = Layout.for_name(name)
    trusted_directory.require_trusted(layout.root)
    trusted_directory.require_trusted(cache_dir())
    if is_daemon_ready(layout):
        return layout, False
    with _signals_as_interrupt(), _rehearsal_lock(layout):
        if is_daemon_ready(layout):
            return layout, False  # another `up` was faster
        if layout.root.exists():
            progress("removing what an earlier run left")
            cleanup.stop_and_remove(layout)
        built = image.ensure_image_built(cache_dir(), progress, release, profile)
        progress("starting the daemon")
        try:
            trusted_directory.create_trusted_directory(layout.root)
            RehearsalSettings(
                name,
                str(built),
                parsed,
                cred_expire,
                slurmd_timeout,
                shm_size,
                trees=laid_over,
                profile_name=profile.name,
            ).save(layout.root)
            _start_daemon_and_wait(layout)
        except BaseException:
            with _signals_ignored():
                cleanup.stop_and_remove(layout)
            raise
    return layout, True


def _start_daemon_and_wait(layout: Layout) -> None:
    package_roots = [str(Path(file).parent.parent) for file in (hyperpod_kit.__file__, hyperpod_rehearsal.__file__)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [*package_roots, os.environ.get("PYTHONPATH", "")])),
        "PATH": host.path_with_sbin(),
    }
    with by_descriptor.open_stream_for_writing(layout.daemon_log, "ab") as log:
        proc = subprocess.Popen(
            [sys.executable, "-u", "-m", "hyperpod_rehearsal.daemon", "--state", str(layout.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
    # Noted by its parent too, so that a Ctrl-C before the daemon's first line still finds it.
    identity = identify_unless_gone_or_zombie(proc.pid)
    if identity is not None:
        state.write_process_identity(layout.daemon_file, identity)
    deadline = time.monotonic() + START_DEADLINE
    while True:
        ready = state.read_own_json_object_or_none(layout.ready_file)
        if ready and "endpoint" in ready:
            return
        if ready or proc.poll() is not None:
            reason = ""
            if ready:
                reason = ready.get("error", "")
            tail = " / ".join(layout.daemon_log.read_text(errors="replace").splitlines()[-3:])
            raise RehearsalError(f"the rehearsal's daemon did not start: {reason or tail or 'no reason given'}")
        if time.monotonic() > deadline:
            raise RehearsalError(f"the rehearsal's daemon was not ready within {START_DEADLINE:.0f} s")
        time.sleep(0.05)


def take_down_rehearsal(name: str) -> bool:
    """Take a rehearsal down; False when there was none. Raises RehearsalError naming what could not be removed."""
    host.require_root(f"taking rehearsal {name} down")
    layout = Layout.for_name(name)
    trusted_directory.require_trusted(layout.root)
    # Also without a directory: an `up` that holds the lock may be about to make it.
    with _rehearsal_lock(layout):
        if not layout.root.exists():
            return False
        cleanup.stop_and_remove(layout)
    return True
