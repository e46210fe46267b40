"""Who may run slurmctld on the state in a shared directory: one machine, until it says or shows that it has gone.

    owner-<n>      who, JSON; made exclusively, so of two that want to be next one is
    beat-<n>       changes every RENEW seconds while that machine keeps the lease
    released-<n>   it has stopped slurmctld and gone

No clock of another machine is read: whoever wants the lease watches `beat` for TAKEOVER seconds of its own, and whoever
has it kills its slurmctld after KEPT seconds without a renewal that succeeded. Slurm itself offers no fence here: its
heartbeat in StateSaveLocation is kept only among the SlurmctldHosts of one slurm.conf.
Assumed: clocks run equally fast within a factor of KEPT/TAKEOVER; a machine that was frozen runs nothing else for
longer than a moment after it thaws, before its keeper sees the time that has passed.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import List, Optional

from hyperpod_kit.errors import NodeError
from hyperpod_kit.untrusted import by_descriptor, parse
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json

RENEW, KEPT, TAKEOVER = 5.0, 20.0, 40.0
"""Seconds."""

_LONGEST = 1 << 16
"""Characters of a file."""


@dataclass(frozen=True)
class LeaseOwner:
    """The machine that has the lease. `instance`: its id at AWS, which no other machine ever has; "" where a build
    before 0.1.0 did not know it: then it is nobody's machine to the others, and not the same as theirs."""

    instance: str
    host: str

    def is_same(self, other: LeaseOwner) -> bool:
        """Whether both are one machine. Two machines that do not know their ids are two."""
        return bool(self.instance) and self.instance == other.instance


def require_instance_id(local: LeaseOwner) -> None:
    """Raises NodeError for a machine without an id: it could not be told from another one."""
    if not local.instance:
        raise NodeError(
            f"the instance id of {local.host or 'this machine'} is unknown, so this node takes no lease on "
            "Slurm's state: another machine without an instance id would take the lease for its own",
            hint="InstanceId in /opt/ml/config/resource_config.json, or the metadata service, must say it",
        )


def list_owner_generations(directory: str) -> List[int]:
    """List the generations of all owners that the directory names, oldest first. Raises OSError."""
    numbers = (name[len("owner-") :] for name in os.listdir(directory) if name.startswith("owner-"))
    return sorted(number for number in map(parse.parse_decimal, numbers) if number is not None)


def read_owner(directory: str, number: int) -> Optional[LeaseOwner]:
    """Read the owner of a generation; None for a file that its writer did not complete, or that has just been
    deleted. Raises OSError."""
    try:
        with open(f"{directory}/owner-{number}", encoding="utf-8") as stream:
            raw = parse.parse_json_object(stream.read(_LONGEST), _LONGEST)
        return dataclass_from_json(LeaseOwner, raw, ignore_unknown=True)
    except (FileNotFoundError, ValueError):
        return None


def taken_at(directory: str, number: int) -> float:
    """Return when that owner took the lease, in Unix seconds: its file is written once. Raises OSError."""
    return os.stat(f"{directory}/owner-{number}").st_mtime


def read_heartbeat(directory: str, number: int) -> str:
    """What a lease's owner wrote last; "" when it never did. Raises OSError."""
    try:
        with open(f"{directory}/beat-{number}", encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def is_free_to_take_at_once(directory: str, number: int, local: LeaseOwner) -> bool:
    """Whether the lease can be taken at once: nobody's, this machine's own from before, or given back.

    Raises NodeError for a machine that does not know its id, OSError.
    """
    require_instance_id(local)
    if not number:
        return True
    current_owner = read_owner(directory, number)
    return os.path.exists(f"{directory}/released-{number}") or (
        current_owner is not None and current_owner.is_same(local)
    )


def try_take_and_delete_older(directory: str, previous_generation: int, local: LeaseOwner) -> int:
    """Become the owner after generation `previous_generation`, and delete the files of earlier owners; return
    the new generation, 0 when somebody else was faster.

    Raises NodeError for a machine that does not know its id, OSError.
    """
    require_instance_id(local)
    number = previous_generation + 1
    try:
        handle = by_descriptor.open_own_or_root_file(
            f"{directory}/owner-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
        )
    except FileExistsError:
        return 0
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(asdict(local), stream)
        stream.flush()
        os.fsync(stream.fileno())
    write_heartbeat_if_still_owner(directory, number, "0")
    for old in list_owner_generations(directory):
        if old < number:
            for kind in ("owner", "beat", "released"):
                with contextlib.suppress(FileNotFoundError):
                    by_descriptor.unlink(f"{directory}/{kind}-{old}")
    return number


def write_heartbeat_if_still_owner(directory: str, number: int, heartbeat: str) -> bool:
    """Write the heartbeat that shows that the owner lives; False when the lease is somebody else's by now.
    Raises OSError."""
    if list_owner_generations(directory)[-1:] != [number]:
        return False
    with by_descriptor.open_stream_for_writing(f"{directory}/beat-{number}", "w", encoding="utf-8") as stream:
        stream.write(heartbeat)
        stream.flush()
        os.fsync(stream.fileno())
    return True


def release(directory: str, number: int) -> None:
    """Mark the lease as released, after slurmctld has ended. Raises OSError."""
    with by_descriptor.open_stream_for_writing(f"{directory}/released-{number}", "w", encoding="utf-8"):
        pass
