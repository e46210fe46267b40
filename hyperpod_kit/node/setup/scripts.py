"""The configuration's own scripts: a step each, at the place among ours that it names, with our steps' own contract.

A script runs in a copy of its directory, so that it may write there: the bundle itself stays as it was verified. What
it prints goes to a file of its own; the last lines of one that fails are in its line of provisioning.log too, which is
the only file that HyperPod ships. Once it has succeeded, a stamp over its files and arguments keeps it from running
again; one that is killed in the middle leaves no stamp, and runs again from a fresh copy.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Dict, Iterator, List, Optional, Tuple

from hyperpod_kit.environment import HPK_CLUSTER, HPK_CONTROLLERS, HPK_GROUP, HPK_LOGINS, HPK_ROLE
from hyperpod_kit.errors import NodeError, RunTimeout
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.scripts import (
    AFTER_MOUNTS,
    AFTER_SLURM,
    BEFORE_MOUNTS,
    CLUSTER,
    CONTROLLERS,
    GROUP,
    LOGINS,
    ROLE,
    WITHOUT_FIRST_LINE,
    CustomScript,
)
from hyperpod_kit.model.states import LIFECYCLE_MODES, ROLES, Role
from hyperpod_kit.node.machine import resource_config
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text, write_if_different
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.machine.timing import wait_for
from hyperpod_kit.system.process import Process, is_alive
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import clean_one_line

# A script that the program which started it has left at work, by dying first: it has its time, and then it is ended.
#
# Two runs of one script at once are never right, and one that is killed in the middle of dpkg leaves packages that
# the next cannot install over. Who it is lies on the node while it runs: its pid with the time of its start.

RECORD_PROCESS = 'echo "$$ $(cut -d " " -f 22 /proc/$$/stat)" >"$1"'
"""What a shell runs to say who it is, before it becomes the script."""


def await_or_kill_earlier_run(node: Node, name: str, timeout: float) -> None:
    """Wait for a run of that script that is still at work, for the rest of its timeout; then kill it, and
    delete its record."""
    earlier = _read_process_record(node.paths.running_script_record(name))
    if earlier is not None and is_alive(earlier):
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - earlier.started / os.sysconf("SC_CLK_TCK")
        remaining = min(timeout, max(0.0, timeout - age))
        wait_for(lambda: None if is_alive(earlier) else True, seconds=remaining, clock=node.clock)
        if is_alive(earlier):
            with suppress(OSError):
                os.killpg(earlier.pid, signal.SIGKILL)
    delete_process_record(node, name)


def delete_process_record(node: Node, name: str) -> None:
    """Delete the record of the script's process, when its run has ended."""
    with suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.running_script_record(name))


def _read_process_record(path: str) -> Optional[Process]:
    try:
        pid, started = (read_text(path) or "").split()
        return Process(int(pid), int(started))
    except ValueError:
        return None


# --- The steps -------------------------------------------------------------------------------------------------------

# A daemon that the script leaves behind holds the file and not our pipe, so that nobody waits for it.
START = f'{RECORD_PROCESS}; cd "$2" && log=$3 && shift 3 && exec "$@" >"$log" 2>&1 </dev/null'
TAIL_LINES = 8
TAIL_BYTES = 1500
"""Of the output of a script that failed, in its line of the log."""


@dataclass(frozen=True)
class ScriptSteps:
    """The scripts of one place: a step for each that this node runs."""

    when: str
    roles: Tuple[str, ...] = ROLES
    modes: Tuple[str, ...] = LIFECYCLE_MODES

    def steps_for(self, config: NodeConfig, role: str, group: str) -> Tuple[Step, ...]:
        """Return a step for each script of this place that such a node runs, in the order of the configuration.
        Behind the mounts they do not run where a required one is missing: what they write would lie below the
        mount point."""
        return tuple(
            Step(
                f"script:{script.name}",
                partial(_run_unless_unchanged, script),
                partial(_reason_to_run, script),
                required=script.required,
                after_success=self.when != BEFORE_MOUNTS,
            )
            for script in config.scripts
            if script.when == self.when and script.runs_on(role, group)
        )


BEFORE_MOUNTS_STEPS = ScriptSteps(BEFORE_MOUNTS)
AFTER_MOUNTS_STEPS = ScriptSteps(AFTER_MOUNTS)
AFTER_SLURM_STEPS = ScriptSteps(AFTER_SLURM)


def _reason_to_run(script: CustomScript, node: Node) -> str:
    """Return why the script would run now, "" when it would not."""
    if script.always:
        return f"run {script.run}, which runs every time"
    stamp = read_text(node.paths.script_stamp(script.name))
    if stamp is None:
        return f"run {script.run}"
    if stamp.strip() == _digest_of_files_and_arguments(node, script):
        return ""
    return f"run {script.run} again: it has changed"


def _run_unless_unchanged(script: CustomScript, node: Node) -> StepOutcome:
    reason = _reason_to_run(script, node)
    if not reason:
        return StepOutcome()
    await_or_kill_earlier_run(node, script.name, script.timeout)
    digest = _digest_of_files_and_arguments(node, script)
    directory = _replace_working_copy(node, script)
    log, process_record = node.paths.script_log(script.name), node.paths.running_script_record(script.name)
    by_descriptor.make_parents(log)
    try:
        done = node.runner.run(
            ["/bin/sh", "-c", START, "sh", process_record, directory, log, *_script_argv(node, script, directory)],
            timeout=script.timeout,
            check=False,
            env=_script_environment(node),
        )
    except RunTimeout:
        raise NodeError(
            f"it did not end within {script.timeout:g} s and was killed{_log_tail_after_colon(log)}",
            hint=f"raise `timeout` of the script {script.name}, or see {log} on the node",
        ) from None
    finally:
        delete_process_record(node, script.name)
    if done.returncode:
        output = _log_tail_after_colon(log)
        if not output and done.stderr.strip():
            output = f": {clean_one_line(done.stderr.strip())}"
        raise NodeError(f"{script.run} exited {done.returncode}{output}", hint=f"on the node: less {log}")
    write_if_different(node.paths.script_stamp(script.name), digest + "\n")
    return StepOutcome(True, f"ran {script.run}")


def _script_argv(node: Node, script: CustomScript, directory: str) -> List[str]:
    """Return the command line that starts the script: its interpreter, file and arguments."""
    file = os.path.join(directory, script.run)
    with open(file, "rb") as stream:
        says_how = stream.read(2) == b"#!"
    interpreter: Tuple[str, ...] = ()
    if not says_how:
        interpreter = WITHOUT_FIRST_LINE.get(os.path.splitext(file)[1], ())
    values = _placeholder_values(node)
    return [*interpreter, file, *(values.get(argument, argument) for argument in script.arguments)]


def _placeholder_values(node: Node) -> Dict[str, str]:
    """STAND_FOR -> what it is on this node, now."""
    listed = resource_config.instances(read_json(node.paths.resource_config) or {})
    logins = [instance.address for instance in listed if node.config.roles.get(instance.group) == Role.LOGIN]
    return {
        CLUSTER: node.config.cluster_name,
        GROUP: node.facts.group,
        ROLE: node.facts.role,
        CONTROLLERS: ",".join(node.facts.controllers),
        LOGINS: ",".join(logins),
    }


def _script_environment(node: Node) -> Dict[str, Optional[str]]:
    values = _placeholder_values(node)
    return {
        HPK_CLUSTER: values[CLUSTER],
        HPK_GROUP: values[GROUP],
        HPK_ROLE: values[ROLE],
        HPK_CONTROLLERS: values[CONTROLLERS],
        HPK_LOGINS: values[LOGINS],
        "SAGEMAKER_RESOURCE_CONFIG_PATH": node.paths.resource_config,
        "HOME": "/root",
        # The bundle's own script runs with C alone, in which programs written in Python refuse what is not ASCII.
        "LC_ALL": "C.UTF-8",
    }


def _replace_working_copy(node: Node, script: CustomScript) -> str:
    """Copy the script's files from the bundle to a directory that it may write to, in place of what an earlier
    run left there, and return that directory."""
    source, target = os.path.join(node.paths.bundle, script.bundle_directory), node.paths.script_directory(script.name)
    by_descriptor.remove_tree(target, ignore_errors=True)
    by_descriptor.make_parents(target)
    try:
        by_descriptor.copy_tree(source, target)
    except OSError as err:
        raise NodeError(f"{source}: {err}", hint="hyperpod-kit upload, then replace the node") from err
    for path in _relative_file_paths(target):
        with open(os.path.join(target, path), "rb") as stream:
            executable = stream.read(2) == b"#!"
        # S3 keeps no mode bits: what begins like a program is one.
        mode = 0o644
        if executable:
            mode = 0o755
        by_descriptor.set_mode(os.path.join(target, path), mode)
    return target


def _digest_of_files_and_arguments(node: Node, script: CustomScript) -> str:
    """Return a digest of the script's files, of what is started, and with what."""
    source = os.path.join(node.paths.bundle, script.bundle_directory)
    total = hashlib.sha256(repr((script.run, script.arguments)).encode())
    for path in _relative_file_paths(source):
        with open(os.path.join(source, path), "rb") as stream:
            total.update(f"{path}\0{hashlib.sha256(stream.read()).hexdigest()}\0".encode())
    return total.hexdigest()


def _relative_file_paths(directory: str) -> Iterator[str]:
    """Every file below, in one order everywhere; what Python leaves in a bundle is none of it."""
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (os.path.relpath(os.path.join(folder, name), directory) for name in sorted(names))


def _log_tail_after_colon(log: str) -> str:
    """Return the last lines of the script's log, as the end of a sentence; they may be anything."""
    try:
        with open(log, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
            lines = stream.read(TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    text = " | ".join(clean_one_line(line) for line in lines[-TAIL_LINES:] if line.strip())
    if text:
        return f": {text}"
    return ""
