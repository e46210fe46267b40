"""Whether users can write where the configuration lets them: asked as a user, because what root can do proves nothing.

A bucket that belongs to root, an empty file system with a directory of root's, a share whose group its server does not
know: each serves, and each refuses every job. So a child of this process takes the numbers of one user after the other
and asks access(2), which reaches the server; where the health check's probe may write, it makes and removes that
probe's file, too. Nobody is refused while one user can write in the mount's own directory or in one right below it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from functools import partial
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.base import Mount, is_on_login_or_compute_nodes
from hyperpod_kit.model.shares import share_path
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.observe import prober
from hyperpod_kit.system import mountinfo
from hyperpod_kit.system.bounded_child import call_in_child

ORDINARY_UIDS = range(1000, 60000)
"""Numbers of people's accounts where the configuration names no users: UID_MIN to UID_MAX of login.defs(5)."""
NO_LOGIN = ("nologin", "false", "sync")
"""Programs in the place of a shell, of accounts that nobody works as."""
MOST_WRITERS = 64
MOST_DIRECTORIES = 64
"""How many are looked at below a mount that has no room for users itself; of more nothing is claimed."""
NAMES_SHOWN = 3
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class WritingUser:
    """The numbers that a user's processes have."""

    name: str
    uid: int
    gid: int
    groups: Tuple[int, ...] = ()


@dataclass(frozen=True)
class WriteQuestion:
    """Whether one of `writers` can write to `path`, or to a directory right below it where `looks_below`.

    probe: the name of the file that may be made there for that, "" for none; remedy: what to do where none can.
    """

    mount: str
    path: str
    writers: Tuple[WritingUser, ...]
    remedy: str
    looks_below: bool = False
    probe: str = ""


def find_user_refusals(node: Node, mounts: Sequence[Mount]) -> Dict[str, str]:
    """Name of a mount -> what its users are refused, in words with the way out; only those of which that is certain.

    For mounts that serve, asked by root. Takes `health.deadline` at most; a mount without an answer is not named.
    """
    refused: Dict[str, List[str]] = {}
    end = node.clock.monotonic() + node.config.health.deadline
    for question in questions_who_can_write(node, mounts):
        seconds = end - node.clock.monotonic()
        if seconds <= 0:
            break
        try:
            refusal = call_in_child(
                question.path,
                partial(describe_refusal_if_none_can_write, question, node.paths.under_root(question.path)),
                seconds,
            )
        except NodeError:
            continue
        if refusal:
            refused.setdefault(question.mount, []).append(refusal)
    return {name: "; ".join(reasons) for name, reasons in refused.items()}


def questions_who_can_write(node: Node, mounts: Sequence[Mount]) -> Iterator[WriteQuestion]:
    """Yield what is to be tried on these mounts: on a home its owner, on a share its members, on all others
    any user."""
    if node.facts.role == Role.CONTROLLER:
        return
    configured = {writer.name: writer for writer in configured_writers(node)}
    users = tuple(known_writers_unless_sssd_or_too_many(node, configured))
    for mount in mounts:
        if mount.read_only or not is_on_login_or_compute_nodes(mount):
            continue
        probe = ""
        if _can_probe_by_file(mount):
            probe = f".hyperpod-kit-probe-{node.facts.node}"
        if mount.owner is not None:
            owner = configured.get(mount.owner)
            if owner is not None:
                yield WriteQuestion(mount.name, mount.path, (owner,), _HOME, probe=probe)
        elif users and not _holds_cache(node, mount):
            below = not mount.traits.one_identity
            if below:
                remedy = _DIRECTORY
            else:
                remedy = _OWNER
            yield WriteQuestion(mount.name, mount.path, users, remedy, looks_below=below, probe=probe)
        yield from _questions_who_can_write_to_shares(node, mount, configured, probe)


_OWNER = "set uid or gid and dir_mode of the mount in the configuration, then: hyperpod-kit upload"
_DIRECTORY = "create a directory for them there, as root: install -d -o USER -g GROUP DIRECTORY"
_HOME = "hyperpod-kit users apply repairs the access point of a home"
_SHARE = "hyperpod-kit node apply repairs the directory; NFS servers accept at most 16 groups per user"


def _questions_who_can_write_to_shares(
    node: Node, mount: Mount, configured: Mapping[str, WritingUser], probe: str
) -> Iterator[WriteQuestion]:
    for group in node.config.groups:
        members = tuple(configured[name] for name in group.members if name in configured)
        if mount.name in group.mounts and members and not group.archived:
            path = share_path(mount.path, group.name)
            yield WriteQuestion(mount.name, path, members[:MOST_WRITERS], _SHARE, probe=probe)


def configured_writers(node: Node) -> Iterator[WritingUser]:
    """The users of the configuration, with the groups that it makes them members of."""
    for user in node.config.users:
        groups = (group.gid for group in node.config.groups if user.name in group.members)
        yield WritingUser(user.name, user.uid, user.gid, tuple(groups))


def known_writers_unless_sssd_or_too_many(node: Node, configured: Mapping[str, WritingUser]) -> Sequence[WritingUser]:
    """Return who works on this node: users of the configuration, else people's accounts. None where a
    directory service has the users, or where there are more than can be tried: then a refusal of some says
    nothing of the others."""
    if node.config.steps.sssd is not None:
        return ()
    people = tuple(configured.values()) or tuple(local_accounts_of_people(node))
    if len(people) <= MOST_WRITERS:
        return people
    return ()


def local_accounts_of_people(node: Node) -> Iterator[WritingUser]:
    """People's accounts in this node's own file: a directory service may hang."""
    for line in (read_text(node.paths.under_root("/etc/passwd")) or "").splitlines():
        fields = line.split(":")
        if len(fields) != 7 or not (fields[2].isdigit() and fields[3].isdigit()):
            continue
        if int(fields[2]) in ORDINARY_UIDS and os.path.basename(fields[6]) not in NO_LOGIN:
            yield WritingUser(fields[0], int(fields[2]), int(fields[3]), tuple(_supplementary_gids(node, fields[0])))


def _supplementary_gids(node: Node, account: str) -> Iterator[int]:
    for line in (read_text(node.paths.under_root("/etc/group")) or "").splitlines():
        fields = line.split(":")
        if len(fields) == 4 and fields[2].isdigit() and account in fields[3].split(","):
            yield int(fields[2])


def _can_probe_by_file(mount: Mount) -> bool:
    """Return whether the probe's file can be made there and be gone again."""
    return mount.probe_may_write() and not mount.traits.keeps_versions


def _holds_cache(node: Node, mount: Mount) -> bool:
    """Whether a client keeps its cache there, as root: then it need not be for users."""
    below = mount.path.rstrip("/") + "/"
    return any(other.cache_path is not None and other.cache_path.startswith(below) for other in node.mounts)


def describe_refusal_if_none_can_write(question: WriteQuestion, path: str) -> str:
    """Try as each writer in turn to write, and return why none can, in words; "" when one can, or when that is
    not certain. Runs in a child, as root, which takes the writers' numbers for a moment each; `path`:
    where the question's path is on this machine."""
    directories, all_listed = [path], True
    if question.looks_below:
        below, all_listed = _list_directories(path)
        directories += below
    for writer in question.writers:
        if any(_can_write_or_fails_otherwise(writer, directory, question.probe) for directory in directories):
            return ""
    facts = None
    if all_listed:
        facts = _owner_and_mode(path)
    if facts is None:
        return ""
    if question.looks_below:
        where = f"{question.path} or a directory in it"
    else:
        where = question.path
    return f"{where} cannot be written by {_format_names(question.writers)}: it is {facts}; {question.remedy}"


def _list_directories(path: str) -> Tuple[List[str], bool]:
    """Some directories right below it, and whether those are all. Where root may not look, what is there is unknown.

    What is mounted there is another mount's affair: a user may have mounted what answers nothing.
    """
    below: List[str] = []
    mounted = {entry.path for entry in mountinfo.parse_mountinfo(mountinfo.read_mountinfo())}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.path in mounted or not entry.is_dir(follow_symlinks=False):
                    continue
                if len(below) == MOST_DIRECTORIES:
                    return below, False
                below.append(entry.path)
    except OSError:
        return below, False
    return below, True


def _can_write_or_fails_otherwise(writer: WritingUser, directory: str, probe: str) -> bool:
    """Whether the writer can make files in the directory. What fails for another reason, a full disk for one, is no
    refusal."""
    _switch_ids_to(writer)
    try:
        if not os.access(directory, os.W_OK | os.X_OK):
            return False
        if probe:
            prober.write_and_remove_file(directory, probe)
    except OSError as err:
        return err.errno not in REFUSALS
    finally:
        _switch_ids_to_root()
    return True


def _switch_ids_to(writer: WritingUser) -> None:
    """Set this process's ids to the writer's, real ones too: access(2) uses those."""
    os.setgroups(writer.groups)
    os.setresgid(writer.gid, writer.gid, 0)
    os.setresuid(writer.uid, writer.uid, 0)


def _switch_ids_to_root() -> None:
    os.setresuid(0, 0, 0)
    os.setresgid(0, 0, 0)


def _owner_and_mode(path: str) -> Optional[str]:
    """Owner, group and mode of a directory; None where root itself cannot see them, or where it is not there."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return f"{facts.st_uid}:{facts.st_gid} with mode {stat.S_IMODE(facts.st_mode):04o}"


def _format_names(people: Sequence[WritingUser]) -> str:
    names = [writer.name for writer in people]
    more = len(names) - NAMES_SHOWN
    listed = ", ".join(names[:NAMES_SHOWN])
    if more > 0:
        return f"{listed} and {more} more"
    return listed
