"""The programs of examples/frameworks on two ranks under `job run`, undisturbed and killed at random moments."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.ports import free_ports
from tests.unit.job.conftest import Job
from tests.unit.job.torch_ranks import PORTS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
Names = tuple[str, ...]


def train(
    job: Job, example: str, folder: Path, *, kills: str = "", ranks: int = 2, words: Names = (), imported: Names = ()
) -> int:
    """Run the example under `job run`, with its checkpoints where the job's root is. The exit status. With `imported`
    its ranks are forked from a process that has imported these, and torch."""
    for name in ("shm", "starts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "kills").write_text(kills)
    job.root = folder / "checkpoints"
    job.environment.update(
        SLURM_NTASKS=str(ranks),
        SLURM_NTASKS_PER_NODE=str(ranks),
        PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        DS_ACCELERATOR="cpu",
        GLOO_SOCKET_IFNAME="lo",
        HPK_SHM_DIR=str(folder / "shm"),
        KILLS=str(folder / "kills"),
        STARTS=str(folder / "starts"),
        ROOT=str(job.root),
        FIRST_PORT=str(free_ports(PORTS)),
    )
    program = str(ROOT / "examples" / "frameworks" / example)
    first = (str(HERE / "warm_rank.py"), _starter((*warm.TORCH, *imported))) if imported else ()
    ranks_of_it = (str(HERE / "torch_ranks.py"), program, "--output", str(folder), *words)
    return job.run(command=(sys.executable, *first, *ranks_of_it))


@functools.cache
def _starter(imported: Names) -> str:
    """The name of a socket at which warm_rank.py asks for its program."""
    zygote = warm.zygote(imported)
    # No pid: a run in a process namespace of its own may have the same one, and abstract addresses are the host's.
    place = f"hpk-warm-ranks-{secrets.token_hex(8)}"
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(f"\0{place}")
    door.listen(16)

    def serve() -> None:
        while True:
            asked, _ = door.accept()
            with asked:
                request, fds, _, _ = socket.recv_fds(asked, 1 << 20, 2)
                with contextlib.suppress(BrokenPipeError):  # one that could not import them: warm_rank.py hears an end
                    socket.send_fds(zygote, [request], [*fds, asked.fileno()])  # who keeps it tells it the rest
                for fd in fds:
                    os.close(fd)

    threading.Thread(target=serve, daemon=True).start()
    return place


def ends_as_undisturbed(
    job: Job,
    example: str,
    folder: Path,
    ended: Callable[[Path], Any],
    steps: int,
    words: Names = (),
    imported: Names = (),
) -> Any:
    """What `ended` says of a run that one of its ranks left five times by SIGKILL, at moments drawn at random: the same
    as of an undisturbed one."""
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    assert train(job, example, folder / "calm", words=words, imported=imported) == 0
    calm = ended(folder / "calm")
    at = sorted(chance.sample(range(2, steps - 8), 5))
    kills = "\n".join(f"{chance.randrange(2)} {step} {chance.uniform(0, 0.2)}" for step in at)
    job.events.clear()
    ended_with = train(job, example, folder / "killed", kills=kills, words=words, imported=imported)
    assert ended_with == 0, f"seed {seed}"
    assert [one["class"] for one in job.said("ended")] == ["crash"] * 5 + ["done"], f"seed {seed}"
    assert "memory" in {one["tier"] for one in job.said("restored")}, f"seed {seed}"
    assert ended(folder / "killed") == calm, f"seed {seed}: kills {kills!r}"
    return calm


def losses(folder: Path) -> dict[str, dict[int, str]]:
    """Per rank the loss of each step, in hexadecimal. A step that was trained again had the same one."""
    found: dict[str, dict[int, str]] = {}
    for path in sorted(folder.glob("losses-*.txt")):
        seen = found[path.name] = {}
        for line in path.read_text().splitlines():
            step, loss = line.split()
            assert seen.setdefault(int(step), loss) == loss, (
                f"{path.name}: step {step} was {seen[int(step)]}, then {loss}"
            )
    return found


def digest_of(parts: Iterable[bytes]) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(part)
    return made.hexdigest()
