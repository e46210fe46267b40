"""The kinds of damage that only a file system knows: special files, links, owners, modes.

Each is done to a directory called `root`; what it needs outside lies beside that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_lab.torture.damage.damage_kinds import ANY, NEWEST, DamageKind, Objects, RootNames


def file_system_damage_kinds(objects: Objects) -> list[DamageKind]:
    """Return all of them, for a root with these objects. Owners, devices and modes that count need root."""
    names = RootNames.of(objects)
    every = [*names.newest_attempt_files(), *names.beside]
    special_kinds = [*_special_file_kinds(names, every), *_linked_attempt_kinds(names)]
    if os.geteuid() != 0:
        return special_kinds
    return [*special_kinds, *_mode_and_owner_kinds(names, every)]


def _move_file_outside_and_replace(name: str, make: Callable[[Path], None], root: Path) -> None:
    """Move the file `name` beside the root, as `copy`, and call `make` for its place."""
    path = root / name
    path.rename(_path_beside_root(path, "copy"))
    make(path)


def _make_socket(path: Path) -> None:
    # Not by bind(2), to which a path may have 107 bytes at most.
    os.mknod(path, stat.S_IFSOCK | 0o600)


def _make_link(target: str, path: Path) -> None:
    path.symlink_to(target)


def _path_beside_root(path: Path, name: str) -> Path:
    """Return the path of a name beside the root."""
    return next(parent for parent in path.parents if parent.name == "root").parent / name


def _make_link_to_outside(make: Callable[[Path], None], path: Path) -> None:
    """Make something outside of the root by `make`, and a link to it at `path`."""
    make(_path_beside_root(path, "outside"))
    path.symlink_to(_path_beside_root(path, "outside"))


def _make_sparse_file(size: int, path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(size)


def _make_directory_with_file(path: Path) -> None:
    path.mkdir()
    (path / "inner").write_bytes(b"x")


def _make_link_ring(path: Path) -> None:
    path.symlink_to(path.name + ".2")
    (path.parent / (path.name + ".2")).symlink_to(path.name)


def _make_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _make_link_to_copy(path: Path) -> None:
    path.symlink_to(_path_beside_root(path, "copy"))


def _make_device(kind: int, major: int, minor: int, path: Path) -> None:
    os.mknod(path, 0o666 | kind, os.makedev(major, minor))


def _special_file_kinds(names: RootNames, every: Sequence[str]) -> Iterator[DamageKind]:
    ways: list[tuple[str, Callable[[Path], None]]] = [
        ("a fifo", os.mkfifo),
        ("a socket", _make_socket),
        ("an empty directory", Path.mkdir),
        ("a directory with a file", _make_directory_with_file),
        ("a link to itself", _make_link_to_itself),
        ("a ring of links", _make_link_ring),
        ("a sparse file of 1 TB", partial(_make_sparse_file, 1 << 40)),
        ("a sparse file of 17 MB", partial(_make_sparse_file, 17 << 20)),
        ("a null device", partial(_make_device, stat.S_IFCHR, 1, 3)),
        ("a device of zeros", partial(_make_device, stat.S_IFCHR, 1, 5)),
        ("a block device", partial(_make_device, stat.S_IFBLK, 7, 99)),
        ("a device without a driver", partial(_make_device, stat.S_IFCHR, 240, 99)),
        ("a link to a fifo", partial(_make_link_to_outside, os.mkfifo)),
        ("a link to a socket", partial(_make_link_to_outside, _make_socket)),
        ("a link to its own bytes outside", _make_link_to_copy),
        *(
            (f"a link to {target}", partial(_make_link, target))
            for target in (
                "/dev/zero",
                "/dev/null",
                "/dev/full",
                "/dev/tty",
                "/proc/self/mem",
                "/proc/kmsg",
                "/dev/random",
                "nowhere",
                ".",
                "..",
                "/",
                "/etc/passwd",
                "/proc/self/fd/0",
                "../" * 40 + "etc/hostname",
                "x" * 200,
            )
        ),
    ]
    for name in every:
        for how, make in ways:
            yield DamageKind(
                f"{name} is {how}",
                names.expected_outcome_of_damaged_object(name),
                special=partial(_move_file_outside_and_replace, name, make),
            )

        def hard(root: Path, name: str = name) -> None:
            os.link(root / name, root.parent / "second name")

        yield DamageKind(f"{name} has a second name outside", NEWEST, special=hard)
    for directory in (layout.LEASES, layout.PINS):
        for how, make in ways:
            yield DamageKind(
                f"{directory} is {how}", NEWEST, special=partial(_create_file_then_replace_it, directory, make)
            )


def _create_file_then_replace_it(name: str, make: Callable[[Path], None], root: Path) -> None:
    (root / name).write_bytes(b"")
    _move_file_outside_and_replace(name, make, root)


def _add_linked_attempt(target: str, root: Path) -> None:
    (root / "seq-000099.step-0000000099.e9-abcd").symlink_to(target)


def _linked_attempt_kinds(names: RootNames) -> Iterator[DamageKind]:
    for index, attempt in enumerate(names.attempts):
        expected = names.expected_outcome_of_useless_attempt(index)

        def moved(root: Path, attempt: str = attempt) -> None:
            (root / attempt).rename(root.parent / "archive")
            (root / attempt).symlink_to(root.parent / "archive")

        yield DamageKind(f"attempt {index} moved outside, a link in its place", NEWEST, special=moved)

        def to_another(root: Path, attempt: str = attempt, index: int = index) -> None:
            (root / attempt).rename(root.parent / "archive")
            (root / attempt).symlink_to(names.attempts[index - 1])

        yield DamageKind(f"attempt {index} is a link to another", expected, special=to_another)
        for target in ("nowhere", attempt, "/dev/zero", "/proc", "."):

            def elsewhere(root: Path, attempt: str = attempt, target: str = target) -> None:
                (root / attempt).rename(root.parent / "archive")
                (root / attempt).symlink_to(target)

            shown = target
            if target == attempt:
                shown = "itself"
            yield DamageKind(f"attempt {index} is a link to {shown}", expected, special=elsewhere)
        for how, make in (("fifo", os.mkfifo), ("file", Path.touch)):
            yield DamageKind(
                f"attempt {index} is a {how}", expected, special=partial(_move_file_outside_and_replace, attempt, make)
            )
    for target in (".", "..", "/proc", "seq-000099.step-0000000099.e9-abcd"):
        yield DamageKind(
            f"one more attempt, a link to {target}",
            NEWEST,
            special=partial(_add_linked_attempt, target),
        )


def _mode_and_owner_kinds(names: RootNames, every: Sequence[str]) -> Iterator[DamageKind]:
    """Yield owners and modes; a user who is not root may be kept from reading."""
    places = [*every, *names.attempts, "."]
    for name in places:
        for mode in (0o000, 0o200, 0o111, 0o400, 0o444, 0o600, 0o777, 0o7777):

            def chmod(root: Path, name: str = name, mode: int = mode) -> None:
                (root / name).chmod(mode)

            yield DamageKind(f"{name} has mode {mode:o}", ANY, special=chmod, unprivileged=True)
            yield DamageKind(f"{name} has mode {mode:o}, seen by root", NEWEST, special=chmod)
        for uid in (1, 12345, 65534):

            def chown(root: Path, name: str = name, uid: int = uid) -> None:
                os.lchown(root / name, uid, uid)

            yield DamageKind(f"{name} belongs to uid {uid}", NEWEST, special=chown)
