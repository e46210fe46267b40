"""Ask many nodes the same thing at once; one that cannot be asked is an answer too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Callable, NamedTuple, Optional, Sequence, TypeVar

from hyperpod_kit.remote.target import Target

THREADS = 64
Answer = TypeVar("Answer")


class Silent(NamedTuple):
    """Why a node cannot be asked, and what to do about it."""

    error: str
    hint: str = ""


def cannot_be_asked(target: Target) -> Optional[Silent]:
    """What AWS says of a node that needs no question; None for one that should answer."""
    if target.status != "Running":
        return Silent(f"the node is {target.status}", "hyperpod-kit wait")
    return None if target.address else Silent("AWS tells no address of the node")


def ask_all(
    targets: Sequence[Target], ask: Callable[[Target], Answer], progress: Callable[[Answer], None]
) -> list[Answer]:
    """One answer a target, in the order of the targets; `progress` sees each as it comes. `ask` must not raise."""
    answers: dict[str, Answer] = {}
    with ThreadPoolExecutor(max(1, min(THREADS, len(targets)))) as pool:
        asked = {pool.submit(ask, target): target for target in targets}
        try:
            for future in as_completed(asked):
                answer = future.result()
                answers[asked[future].instance_id] = answer
                progress(answer)
        except BaseException:
            # Ctrl-C: those that were not asked yet are not asked any more.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [answers[target.instance_id] for target in targets]
