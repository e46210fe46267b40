"""One byte changed, anywhere: verify must name the file, restore must walk back or refuse, and never return it."""

from __future__ import annotations

import itertools
import os
import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hyperpod_kit.checkpoint import Manager, Restored
from hyperpod_kit.checkpoint.repository.format import digest, layout
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.environment import HPK_SHM_DIR
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture.ground import Ground
from hyperpod_lab.torture.report import Budget, PartOutcome
from hyperpod_lab.torture.subject import Subject

OLD, NEW = 10, 11
"""Steps of the two checkpoints. The new one is damaged; the old one is there in every second root."""


@dataclass(frozen=True)
class Stretch:
    """A part of a file that gets its own share of the flips."""

    name: str
    file: Path
    begin: int
    end: int


class _Target:
    """A root with one or two checkpoints, and a manager that restores from it again and again."""

    def __init__(self, here: Ground, seed: int, *, older: bool, algorithm: str) -> None:
        self.older = older
        self.root = Path(here.root)
        self._subject = Subject(seed, width=8)
        first = Manager(self.root, algorithm=algorithm)
        first.restore(self._subject.state)
        self.epoch = first.epoch
        steps = [NEW]
        if older:
            steps = [OLD, NEW]
        for step in steps:
            self._subject.fill(self.epoch, step)
            handle = first.save(step, self._subject.state, on_busy="wait")
            if not handle.wait(SaveState.DURABLE, timeout=60.0):
                raise CheckpointError(f"the checkpoint to be damaged was not made: {handle}")
        first.close()
        assert handle.checkpoint_id is not None
        self.attempt = handle.checkpoint_id
        self._manager = Manager(self.root)
        self._initial_names = set(os.listdir(self.root))
        problem = self.restore_and_describe()
        if problem != f"step {NEW}":
            raise CheckpointError(f"an undamaged checkpoint gave: {problem}")

    def close(self) -> None:
        self._manager.close()

    def restore_and_describe(self) -> str:
        """Restore and return `step N`, `refused: …`, or whatever is wrong with it."""
        self._subject.clear()
        try:
            got = self._manager.restore(self._subject.state)
        except NoValidCheckpoint as err:
            return f"refused: {err.message}"
        except CheckpointError as err:
            return f"{type(err).__name__}: {err.message}"
        finally:
            self._delete_tombstones()
        if not isinstance(got, Restored):
            return "started from scratch"
        wrong = self._subject.find_differences(self.epoch, got.step)
        if wrong:
            return f"returned changed bytes of step {got.step}: {', '.join(wrong)}"
        if got.step == OLD and self.attempt not in [attempt for attempt, _ in got.rejected]:
            return "walked back without a reason"
        return f"step {got.step}"

    def _delete_tombstones(self) -> None:
        """Delete the tombstones: the next flip must be found by itself, not because a restore has written this
        checkpoint off."""
        for name in set(os.listdir(self.root)) - self._initial_names:
            if layout.parse_tombstone(name) is not None:
                by_descriptor.unlink(self.root / name)

    def verify_and_judge_if_file_named(self, file: str) -> str:
        """Verify the checkpoint; return `named`, or what was said instead of naming the damaged file."""
        try:
            verify.verify_checkpoint(str(self.root), self.attempt)
        except (CheckpointError, OSError) as err:
            reason = verify.describe_failure(err)
            if file in reason:
                return "named"
            return f"the reason does not name {file}: {reason}"
        return "passed"

    def list_byte_stretches_of_checkpoint(self) -> list[Stretch]:
        """Return a stretch for every kind of byte that a checkpoint consists of."""
        folder = self.root / self.attempt
        out = []
        for path in sorted(folder.iterdir()):
            size = path.stat().st_size
            if not path.name.startswith("shard-"):
                out.append(Stretch(path.name, path, 0, size))
                continue
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                text = len(file.read(length).rstrip(b" "))
            json_end, data, data_end = 8 + text, 8 + length, digest.split_size_into_data_and_leaf_count(size)[0]
            out += [
                Stretch("shard length", path, 0, 8),
                Stretch("shard header", path, 8, json_end),
                Stretch("shard data", path, data, data_end),
                Stretch("shard digests", path, data_end, size),
            ]
            if data > json_end:
                out.append(Stretch("shard padding", path, json_end, data))
        return out


def flip_checkpoint_bytes(here: Ground, seed: int, part: PartOutcome, budget: Budget) -> None:
    """Flip bytes until `part.requested` are done or the budget is over; record what was not detected."""
    begin = time.monotonic()
    dice = random.Random(f"flips/{seed}")
    with _shm_environment_pointing_at(here), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        targets: list[_Target] = []
        for algorithm, older in itertools.product(_available_digest_algorithms(), (True, False)):
            ground = here.make_subground(f"{algorithm}-{older}")
            targets.append(_Target(ground, seed, older=older, algorithm=algorithm))
        try:
            plan: list[tuple[_Target, Stretch]] = []
            for target in targets:
                plan += [(target, stretch) for stretch in target.list_byte_stretches_of_checkpoint()]
            while part.done < part.requested and not budget.over:
                target, stretch = plan[part.done % len(plan)]
                _flip_byte_and_check_detected(target, stretch, dice, part, seed)
        finally:
            for target in targets:
                target.close()
    part.seconds = time.monotonic() - begin


def _outcome_of_restore(description: str) -> str:
    if description == f"step {OLD}":
        return "walked back"
    if description.startswith("refused"):
        return "refused"
    return "wrong"


def _flip_byte_and_check_detected(
    target: _Target, stretch: Stretch, dice: random.Random, part: PartOutcome, seed: int
) -> None:
    at, mask = dice.randrange(stretch.begin, stretch.end), dice.randrange(1, 256)
    flip_byte(stretch.file, at, mask)
    try:
        verdict = target.verify_and_judge_if_file_named(stretch.file.name)
        restored = target.restore_and_describe()
    finally:
        flip_byte(stretch.file, at, mask)
    part.done += 1
    part.counts[f"in {stretch.name}"] += 1
    outcome = _outcome_of_restore(restored)
    part.counts[outcome] += 1
    expected_outcome = "refused"
    if target.older:
        expected_outcome = "walked back"
    if verdict != "named" or outcome != expected_outcome:
        part.record_violation(
            f"seed {seed}, flip {part.done}: byte {at} of {stretch.file.name} ({stretch.name}) ^ {mask:#04x}: "
            f"verify: {verdict}; restore: {restored}"
        )
    else:
        part.counts["detected"] += 1


def flip_byte(path: Path, at: int, mask: int) -> None:
    """Change one byte of a file by XOR; a second time undoes it."""
    with by_descriptor.open_stream_for_writing(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def _available_digest_algorithms() -> list[str]:
    names = []
    for name in ("blake2b", "xxh3"):
        try:
            digest.algorithm(name)
            names.append(name)
        except CheckpointError:
            continue
    return names


@contextmanager
def _shm_environment_pointing_at(here: Ground) -> Iterator[None]:
    """Have this process's agents keep their slots in the torture's own shared memory until the block ends."""
    before = os.environ.get(HPK_SHM_DIR)
    os.environ[HPK_SHM_DIR] = str(here.shm)
    try:
        yield
    finally:
        if before is None:
            del os.environ[HPK_SHM_DIR]
        else:
            os.environ[HPK_SHM_DIR] = before
