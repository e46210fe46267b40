"""The kinds of damage: what may have happened to the files of a root, each with what a restore must come to.

A root is names and bytes, so most kinds are functions from one dictionary to another and can be done to any storage.
Special files, links, owners and modes are done to a directory of a file system that has them.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.repository.format import layout, manifest

Objects = dict[str, bytes]

NEWEST, OLDER, ANY = "the newest", "an older one", "any, or refused"
"""What must come out. With ANY a restore may refuse, with an error of ours; what it returns is right in any case."""


@dataclass(frozen=True)
class DamageKind:
    """One kind. `change` makes other objects of a root's; `special` does to a directory what only a file system can.

    `unprivileged`: whoever looks is not root, so that modes count.
    """

    name: str
    expected: str
    change: Callable[[Objects], Objects] | None = None
    special: Callable[[Path], None] | None = None
    unprivileged: bool = False


@dataclass(frozen=True)
class RootNames:
    """What a root consists of: attempts from the newest to the oldest, and what lies beside them."""

    attempts: tuple[str, ...]
    files: tuple[str, ...]  # of each attempt
    beside: tuple[str, ...]  # LATEST, RUN.json, epoch files

    @staticmethod
    def of(objects: Objects) -> RootNames:
        attempts = sorted({name.partition("/")[0] for name in objects if "/" in name}, reverse=True)
        files = sorted(name.partition("/")[2] for name in objects if name.startswith(attempts[0] + "/"))
        return RootNames(tuple(attempts), tuple(files), tuple(sorted(name for name in objects if "/" not in name)))

    def newest_attempt_files(self) -> list[str]:
        return [f"{self.attempts[0]}/{file}" for file in self.files]

    def expected_outcome_of_damaged_object(self, name: str) -> str:
        """Return what a restore must come to when that one object is damaged."""
        if name == layout.RUN_FILE:
            return ANY  # the newest where RUN.json can be written again, refused in words elsewhere
        if name.startswith(self.attempts[0]):
            return OLDER
        return NEWEST

    def expected_outcome_of_useless_attempt(self, index: int) -> str:
        """Return what a restore must come to when that one attempt is useless."""
        if index == 0:
            return OLDER
        return NEWEST


def object_damage_kinds(objects: Objects, dice: random.Random) -> list[DamageKind]:
    """Return all kinds that can be done to any storage, for a root with these objects; the same for the same
    dice."""
    names = RootNames.of(objects)
    every = [*names.newest_attempt_files(), *names.beside]
    return [
        *_byte_damage_kinds(objects, names, every, dice),
        *_deletion_and_exchange_damage_kinds(objects, names, every),
        *_attempt_damage_kinds(names),
        *_pair_damage_kinds(objects, names, dice),
        *_manifest_field_damage_kinds(objects, names),
    ]


def _with_edited_object(name: str, edit: Callable[[bytes], bytes], objects: Objects) -> Objects:
    return {**objects, name: edit(objects[name])}


def _flipped(at: int, mask: int, data: bytes) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def _truncated(to: int, data: bytes) -> bytes:
    return data[:to]


def _grown(tail: bytes, data: bytes) -> bytes:
    return data + tail


def _with_zeros(begin: int, end: int, data: bytes) -> bytes:
    return data[:begin] + bytes(end - begin) + data[end:]


def _torn_from(at: int, other: bytes, data: bytes) -> bytes:
    """The beginning of one version and the end of another, as after a half overwrite."""
    return data[:at] + other[at:]


def _zeros(data: bytes) -> bytes:
    return bytes(len(data))


def _reversed(data: bytes) -> bytes:
    return data[::-1]


def _byte_damage_kinds(
    objects: Objects, names: RootNames, every: Sequence[str], dice: random.Random
) -> Iterator[DamageKind]:
    """Yield flipped bits, truncation, growth and zeros of each object."""
    for name in every:
        data, expected = objects[name], names.expected_outcome_of_damaged_object(name)
        drawn_offsets = 60
        if name.endswith(".safetensors"):
            drawn_offsets = 100
        offsets = {0, 1, 7, 8, len(data) // 2, len(data) - 2, len(data) - 1}
        offsets |= set(dice.sample(range(len(data)), min(len(data), drawn_offsets)))
        for at in sorted(offset for offset in offsets if 0 <= offset < len(data)):
            mask = dice.randrange(1, 256)
            yield DamageKind(
                f"byte {at} of {name} ^ {mask:#04x}",
                expected,
                partial(_with_edited_object, name, partial(_flipped, at, mask)),
            )
        for to in sorted(
            {
                0,
                1,
                2,
                7,
                8,
                9,
                len(data) // 4,
                len(data) // 2,
                len(data) - 4096,
                len(data) - 8,
                len(data) - 2,
                len(data) - 1,
                *dice.sample(range(len(data)), 8),
            }
        ):
            if 0 <= to < len(data):
                yield DamageKind(
                    f"{name} cut to {to} bytes", expected, partial(_with_edited_object, name, partial(_truncated, to))
                )
        tails = (b"\n", b"\0", b"x", b"}", bytes(7), bytes(8), bytes(4096), bytes(1 << 20), data, data[-8:], data[:1])
        for tail in tails:
            yield DamageKind(
                f"{name} with {len(tail)} bytes more, {tail[:1]!r}",
                expected,
                partial(_with_edited_object, name, partial(_grown, tail)),
            )
        for _ in range(10):
            begin = dice.randrange(len(data))
            end = min(len(data), begin + dice.choice((1, 8, 512, 4096, len(data))))
            if any(data[begin:end]):
                yield DamageKind(
                    f"{name} with zeros from {begin} to {end}",
                    expected,
                    partial(_with_edited_object, name, partial(_with_zeros, begin, end)),
                )
        yield DamageKind(f"{name} all zeros", expected, partial(_with_edited_object, name, _zeros))
        yield DamageKind(f"{name} reversed", expected, partial(_with_edited_object, name, _reversed))


def _with_object(name: str, data: bytes, objects: Objects) -> Objects:
    return {**objects, name: data}


def _without_objects(removed: tuple[str, ...], objects: Objects) -> Objects:
    return {name: data for name, data in objects.items() if name not in removed}


def _without_attempt(attempt: str, objects: Objects) -> Objects:
    return {name: data for name, data in objects.items() if not name.startswith(attempt + "/")}


def _with_objects_swapped(first: str, second: str, objects: Objects) -> Objects:
    return {**objects, first: objects[second], second: objects[first]}


def _deletion_and_exchange_damage_kinds(
    objects: Objects, names: RootNames, every: Sequence[str]
) -> Iterator[DamageKind]:
    """Yield files that are gone, or that have another file's bytes: of another attempt, of another rank, of
    another kind; a half of each."""
    manifest = f"{names.attempts[0]}/{layout.MANIFEST_FILE}"
    for name in every:
        # Without its manifest it was never committed: the older one is right, and verify has nothing to say.
        yield DamageKind(
            f"{name} deleted", names.expected_outcome_of_damaged_object(name), partial(_without_objects, (name,))
        )
        for other in sorted(objects):
            if other == name or objects[other] == objects[name]:
                continue
            yield DamageKind(
                f"{name} with the bytes of {other}",
                names.expected_outcome_of_damaged_object(name),
                partial(_with_object, name, objects[other]),
            )
        twin = f"{names.attempts[1]}/{name.partition('/')[2]}"
        if twin in objects and objects[twin] != objects[name]:
            for part in (1, 2, 3):
                at = len(objects[name]) * part // 4
                if _torn_from(at, objects[twin], objects[name]) != objects[name]:
                    yield DamageKind(
                        f"{name} from byte {at} on that of the older one",
                        names.expected_outcome_of_damaged_object(name),
                        partial(_with_edited_object, name, partial(_torn_from, at, objects[twin])),
                    )
    for first in names.newest_attempt_files():
        for second in names.newest_attempt_files():
            if first < second and objects[first] != objects[second]:
                yield DamageKind(
                    f"{first} and {second} exchanged", OLDER, partial(_with_objects_swapped, first, second)
                )
        removed = tuple(name for name in names.newest_attempt_files() if name != first)
        yield DamageKind(f"nothing left of the newest but {first}", OLDER, partial(_without_objects, removed))
        yield DamageKind(
            f"only {first} of the newest, and no {layout.LATEST_FILE}",
            OLDER,
            partial(_without_objects, (*removed, layout.LATEST_FILE)),
        )
        if first != manifest:
            yield DamageKind(
                f"{first} gone and {layout.RUN_FILE} too", ANY, partial(_without_objects, (first, layout.RUN_FILE))
            )


def _with_attempt_renamed(old: str, new: str, keep_old: bool, objects: Objects) -> Objects:
    """Return the objects with an attempt under another name, or (`keep`) under both."""
    moved = {name.replace(old, new, 1): data for name, data in objects.items() if name.startswith(old + "/")}
    rest = {name: data for name, data in objects.items() if keep_old or not name.startswith(old + "/")}
    return {**rest, **moved}


def _attempt_damage_kinds(names: RootNames) -> Iterator[DamageKind]:
    """Yield whole attempts that are renamed, copied, deleted, mixed up, or beside strange things."""
    for index, attempt in enumerate(names.attempts):
        name = layout.parse_checkpoint_id(attempt)
        assert name is not None
        expected = names.expected_outcome_of_useless_attempt(index)
        yield DamageKind(f"attempt {index} deleted", expected, partial(_without_attempt, attempt))
        other_ids = [name._replace(seq=name.seq + more) for more in (1, 100, 10**6)]
        other_ids += [
            name._replace(step=name.step + 1),
            name._replace(step=0),
            name._replace(epoch=name.epoch + 1),
            name._replace(seq=1, epoch=99),
        ]
        for other in other_ids:
            if str(other) in names.attempts:
                continue
            renamed = partial(_with_attempt_renamed, attempt, str(other), False)
            yield DamageKind(f"attempt {index} renamed to {other}", expected, renamed)
            copied = partial(_with_attempt_renamed, attempt, str(other), True)
            yield DamageKind(f"attempt {index} copied to {other}", NEWEST, copied)
        for strange in ("seq-1.step-2.e3-zz", "SEQ", attempt + ".BAD", attempt + "~", "." + attempt, attempt + ".old"):
            yield DamageKind(
                f"attempt {index} renamed to {strange}",
                expected,
                partial(_with_attempt_renamed, attempt, strange, False),
            )
            yield DamageKind(
                f"attempt {index} copied to {strange}", NEWEST, partial(_with_attempt_renamed, attempt, strange, True)
            )
    newest = names.attempts[0]
    for added_name, added_data in (
        (f"{newest}.BAD", b"{}"),
        (f"{newest}.BAD", b""),
        ("epoch-000099.json", b"{}"),
        ("epoch-000099.json", b""),
        ("epoch-xyz.json", b""),
        (f"{newest}/shard-00099.safetensors", b"x"),
        (f"{newest}/core.1234", bytes(10_000)),
        (f"{newest}/report-00000.json", b"{"),
        ("leases/nonsense", b""),
        (f"leases/{newest}.9999999999-00000000.json", b""),
        ("pins/nonsense.json", b""),
        (f"pins/{newest}.json", b""),
        ("notes.txt", b"mine"),
        (".hpk/owner-000001.json", b"{"),
        ("LATEST/x", b""),
        ("lost+found/x", b""),
    ):

        def added(objects: Objects, name: str = added_name, data: bytes = added_data) -> Objects:
            rest = {other: old for other, old in objects.items() if not name.startswith(other + "/")}
            return {**rest, name: data}

        yield DamageKind(f"{added_name} of {len(added_data)} bytes there too", NEWEST, added)


def _emptied(data: bytes) -> bytes:
    return b""


def _halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _with_question_mark(data: bytes) -> bytes:
    return data + b"?"


def _with_wrong_bit(data: bytes) -> bytes:
    return _flipped(len(data) // 3, 4, data)


_PAIR_WAYS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("empty", _emptied),
    ("cut", _halved),
    ("longer", _with_question_mark),
    ("a bit wrong", _with_wrong_bit),
    ("zeros", _zeros),
)


def _pair_damage_kinds(objects: Objects, names: RootNames, dice: random.Random) -> Iterator[DamageKind]:
    """Yield two at once: the newest and the one before it, each in its own way; the oldest must do."""
    every = list(itertools.product(names.files, names.files, _PAIR_WAYS, _PAIR_WAYS))
    for newest_file, older_file, (how, first), (how_two, second) in dice.sample(every, min(len(every), 250)):

        def both(
            objects: Objects,
            newest_file: str = newest_file,
            older_file: str = older_file,
            first: Callable[[bytes], bytes] = first,
            second: Callable[[bytes], bytes] = second,
        ) -> Objects:
            name, older = f"{names.attempts[0]}/{newest_file}", f"{names.attempts[1]}/{older_file}"
            return {**objects, name: first(objects[name]), older: second(objects[older])}

        yield DamageKind(f"{newest_file} of the newest {how}, {older_file} of the older {how_two}", OLDER, both)


_ODD_VALUES: tuple[object, ...] = (None, "x", "../../x", -1, 10**30, 1.5, True, [], {}, [[]], "0" * 10_000)


def _manifest_field_damage_kinds(objects: Objects, names: RootNames) -> Iterator[DamageKind]:
    """Yield manifests that prove themselves and have an odd value, as another version or somebody else would
    write them."""
    name = f"{names.attempts[0]}/{layout.MANIFEST_FILE}"
    try:
        body = json.loads(objects[name])
    except ValueError:
        return
    body.pop("self")
    key_paths: list[tuple[Any, ...]] = [(key,) for key in body]
    for key in ("extra", "index"):
        key_paths += [(key, inner) for inner in body.get(key, ())]
    key_paths += [("shards", 0, key) for key in body["shards"][0]]
    for key_path in key_paths:
        for odd in (*_ODD_VALUES, _REMOVED):
            changed = _with_field_set_or_removed(body, key_path, odd)
            if changed != body:
                yield DamageKind(
                    f"{layout.MANIFEST_FILE} whose {'.'.join(map(str, key_path))} is {_odd_value_as_text(odd)}",
                    ANY,
                    partial(_with_object, name, manifest.seal_json(changed)),
                )


_REMOVED = object()


def _odd_value_as_text(odd: object) -> str:
    if odd is _REMOVED:
        return "gone"
    return repr(odd)[:20]


def _with_field_set_or_removed(body: Any, key_path: Sequence[Any], value: object) -> Any:
    copy = json.loads(json.dumps(body))
    inner = copy
    for key in key_path[:-1]:
        inner = inner[key]
    if value is _REMOVED:
        del inner[key_path[-1]]
    else:
        inner[key_path[-1]] = value
    return copy
