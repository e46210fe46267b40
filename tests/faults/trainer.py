"""A trainer that loads in a moment: its weights are a chain of digests, saved in this project's own format.

    trainer.py LIB --steps N [--every K] [--pause S] [--fail-after STEPS] [--keep-on]

LIB holds the package hyperpod_kit. All ranks end a step together, over sockets; rank 0 says each step that it ended.
SIGUSR1: save and exit 75; SIGUSR2: exit 1; --fail-after: exit 1 so many steps after every load of a checkpoint;
--keep-on: a save that cannot be written is said, and training goes on without it.
System Python only: it runs on the nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

SEED = b"weights at step 0 of rank %d"


def after(state: bytes, step: int) -> bytes:
    """The weights one step later."""
    return hashlib.sha256(state + step.to_bytes(8, "big")).digest()


def weights(ranks: int, steps: int) -> List[str]:
    """What an undisturbed run of so many steps ends with, by rank."""
    found = []
    for rank in range(ranks):
        state = hashlib.sha256(SEED % rank).digest()
        for step in range(1, steps + 1):
            state = after(state, step)
        found.append(state.hex())
    return found


def say(**fields: Any) -> None:
    """One line in one write: lines of ranks must not cut into each other."""
    os.write(1, (json.dumps({"t": round(time.time(), 3), **fields}) + "\n").encode())


def launch() -> str:
    """Tells a start of the ranks from others: HyperPod may start those of one attempt several times."""
    from hyperpod_kit.slurm import environment  # LIB is in the path only now

    return environment.step_launch_id_with_srun_port(os.environ)


class Ranks:
    """All ranks of one attempt. Rank 0 listens, the others find it through a file beside the checkpoints."""

    def __init__(self, rank: int, ranks: int, place: Path) -> None:
        self._rank, self._ranks = rank, ranks
        place.parent.mkdir(exist_ok=True)
        if rank == 0:
            listener = socket.create_server(("0.0.0.0", 0))
            text = f"{own_address()} {listener.getsockname()[1]}"
            place.with_suffix(".new").write_text(text)
            place.with_suffix(".new").rename(place)
            self._peers = [listener.accept()[0].makefile("rw") for _ in range(ranks - 1)]
        else:
            while not place.exists():
                time.sleep(0.02)
            host, port = place.read_text().split()
            self._peers = [socket.create_connection((host, int(port))).makefile("rw")]

    def agree(self, word: Dict[str, bool]) -> Dict[str, bool]:
        """What any rank wants; returns when all have asked. Raises EOFError when a peer is gone."""
        if self._rank == 0:
            for peer in self._peers:
                theirs = self._hear(peer)
                word = {key: value or theirs[key] for key, value in word.items()}
            for peer in self._peers:
                self._tell(peer, word)
            return word
        self._tell(self._peers[0], word)
        return self._hear(self._peers[0])

    @staticmethod
    def _tell(peer: Any, word: Dict[str, bool]) -> None:
        peer.write(json.dumps(word) + "\n")
        peer.flush()

    @staticmethod
    def _hear(peer: Any) -> Dict[str, bool]:
        line = peer.readline()
        if not line:
            raise EOFError("a peer is gone")
        answer: Dict[str, bool] = json.loads(line)
        return answer


def own_address() -> str:
    """The address under which other nodes of the job reach this one."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.connect((os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"), 9))
        return str(sock.getsockname()[0])


class Checkpoints:
    """Saves and loads one rank's weights."""

    def __init__(self, root: str, rank: int, ranks: int, keep_on: bool = False) -> None:
        from hyperpod_kit.checkpoint.repository.format import layout
        from hyperpod_kit.checkpoint.repository.records import identity
        from hyperpod_kit.checkpoint.repository.store.open import open_store

        self._root, self._rank, self._ranks, self._keep_on = root, rank, ranks, keep_on
        self._store = open_store(root)
        if rank == 0:
            # Now and at no save: a root that is taken away must not be made anew.
            identity.write_run_file_unless_valid(self._store, identity.RunIdentity("faults", "faults"))
        # No rank saves before all have met, so every rank finds the same.
        there = [layout.parse_checkpoint_id(name.rstrip("/")) for name in self._store.list()]
        self._epoch = 1 + max((one.epoch for one in there if one), default=0)
        found = layout.parse_checkpoint_id(self._restored())
        self._seq, self.step = (found.seq, found.step) if found else (0, 0)
        self._from = str(found) if found else ""

    def _restored(self) -> str:
        """As `checkpoint.Manager` does it: what this attempt is told of and every older one, until one proves every
        byte; rank 0 says which. Raises CheckpointError."""
        from hyperpod_kit.checkpoint.repository import selection
        from hyperpod_kit.checkpoint.repository.read import verify
        from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint, StorageUnreadable
        from hyperpod_kit.slurm import verdict
        from hyperpod_kit.slurm.verdict import RestoreVerdict

        wanted, rejected = os.environ["HPK_RESUME_FROM"], []
        say_so = (
            (lambda found: verdict.write_verdict_if_under_job_run(os.environ, found))
            if self._rank == 0
            else (lambda found: None)
        )
        first = None if wanted == verdict.NONE else wanted
        for entry in selection.iter_committed_not_excluded_newest_first(
            self._root, start_at=first, also_saved_by_job_attempt=os.environ["HPK_ATTEMPT"]
        ):
            try:
                verify.verify_checkpoint(self._root, entry.checkpoint_id)
            except CheckpointError as err:
                rejected.append((entry.checkpoint_id, err.message))
                continue
            except OSError as err:
                # Not a word about the checkpoint: an older one is not taken for it.
                rejected.append((entry.checkpoint_id, str(err)))
                say_so(RestoreVerdict("", rejected=tuple(rejected), error=StorageUnreadable.__name__, why=str(err)))
                self._until_told()
                raise
            order = (entry.name.epoch, entry.name.seq)
            say_so(RestoreVerdict(entry.checkpoint_id, entry.name.step, order, "storage", tuple(rejected)))
            return entry.checkpoint_id
        if rejected:
            none = NoValidCheckpoint(self._root, rejected)
            say_so(RestoreVerdict("", rejected=tuple(rejected), error=type(none).__name__, why=none.message))
            self._until_told()
            raise none
        say_so(RestoreVerdict(verdict.NONE))
        return verdict.NONE

    @staticmethod
    def _until_told() -> None:
        """The first rank that fails takes the others with it, so all wait until rank 0 has said why."""
        from hyperpod_kit.slurm import verdict

        folder = Path(verdict.verdict_directory(os.environ["HPK_STATE"], os.environ["HPK_ATTEMPT"]))
        end = time.monotonic() + 20.0
        while time.monotonic() < end and not any(told.read_bytes().endswith(b"}") for told in folder.glob("*.json")):
            time.sleep(0.05)

    def load(self) -> bytes:
        """Of a smaller world's checkpoint, the shards are dealt out again."""
        if not self._from:
            return hashlib.sha256(SEED % self._rank).digest()
        shards = [name for name in self._store.list(self._from) if name.startswith("shard-")]
        return self._store.read(f"{self._from}/{shards[self._rank % len(shards)]}")[:32]

    def save(self, step: int, state: bytes, ranks: Ranks) -> None:
        """Every rank its shard; rank 0 commits once all are there."""
        from hyperpod_kit.checkpoint.repository import commit
        from hyperpod_kit.checkpoint.repository.format import digest, layout
        from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest, now
        from hyperpod_kit.slurm.progress import ProgressWriter

        self._seq += 1
        nonce = hashlib.sha256(os.environ["HPK_ATTEMPT"].encode()).hexdigest()[:6]
        name = str(layout.CheckpointId(self._seq, step, self._epoch, nonce))
        algorithm = digest.algorithm("blake2b")
        leaves = algorithm.leaf(state)
        failed: OSError | None = None
        try:
            self._store.create(f"{name}/{layout.shard_file(self._rank)}", state + leaves)
        except OSError as err:
            if not self._keep_on:
                raise
            failed = err
            say(attempt=os.environ["HPK_ATTEMPT"], rank=self._rank, failed=step, why=str(err))
            ProgressWriter().report_failed_save()
        if ranks.agree({"failed": failed is not None})["failed"] or self._rank:
            return
        size = len(state) + len(leaves)
        shards = []
        for rank in range(self._ranks):
            data = self._store.read(f"{name}/{layout.shard_file(rank)}")
            theirs = algorithm.leaf(data[:32])
            shards.append(FileRecord(layout.shard_file(rank), size, digest.root_digest(algorithm, theirs, size), rank))
        extra = json.dumps({"step": step}).encode()
        commit.commit(
            self._root,
            name,
            Manifest(
                run="faults",
                run_id="faults",
                epoch=self._epoch,
                seq=self._seq,
                step=step,
                world=self._ranks,
                plan="faults",
                digest="blake2b",
                chunk=digest.CHUNK,
                total_bytes=size * self._ranks,
                tensors=self._ranks,
                time=now(),
                shards=tuple(shards),
                extra=FileRecord(layout.EXTRA_FILE, len(extra), digest.small_object_digest(extra)),
            ),
            extra,
        )
        say(attempt=os.environ["HPK_ATTEMPT"], saved=name, launch=launch())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("lib")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--fail-after", type=int, default=0)
    parser.add_argument("--keep-on", action="store_true")
    args = parser.parse_args()
    wanted: List[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(1))
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(1))
    sys.path.insert(0, args.lib)
    from hyperpod_kit.slurm.progress import ProgressWriter

    attempt, rank, count = os.environ["HPK_ATTEMPT"], int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    told = ProgressWriter()
    checkpoints = Checkpoints(os.environ["HPK_CHECKPOINT_ROOT"], rank, count, args.keep_on)
    state, first = checkpoints.load(), checkpoints.step
    told.report_first_step(first + 1)
    say(attempt=attempt, rank=rank, resumed=os.environ["HPK_RESUME_FROM"], at=first, node=os.environ["SLURMD_NODENAME"])
    ranks = Ranks(rank, count, Path(os.environ["HPK_STATE"], "meet", f"{attempt}.{launch()}"))
    for step in range(first + 1, args.steps + 1):
        time.sleep(args.pause)
        if args.fail_after and first and step > first + args.fail_after:
            return 1
        state = after(state, step)
        agreed = ranks.agree({"save": bool(wanted)})
        told.report_completed_step(step)
        if rank == 0:
            say(attempt=attempt, step=step, launch=launch())
        if agreed["save"] or step % args.every == 0:
            checkpoints.save(step, state, ranks)
        if agreed["save"]:
            # As `checkpoint.Manager` does it: Slurm and `job run` both warn, and Python ends without its handlers.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            return 75
    say(attempt=attempt, rank=rank, weights=state.hex())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (EOFError, ConnectionError) as err:
        say(lost=str(err), rank=os.environ.get("SLURM_PROCID"))
        sys.exit(1)
