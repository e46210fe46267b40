"""Many questions at once: in order, bounded, and none held up by those that wait."""

from __future__ import annotations

import resource
import threading
import time

import pytest

from hyperpod_kit.remote.connect import fan_out
from hyperpod_kit.remote.connect.fan_out import query_all
from hyperpod_kit.remote.target import NodeTarget


def nodes(count: int) -> list[NodeTarget]:
    return [NodeTarget(f"i-{index}", "g", "compute", f"10.0.0.{index}") for index in range(count)]


class Crowd:
    """Counts who is being asked; `answer` waits until it is let go: a moment after `expected` are being asked."""

    def __init__(self, expected: int = 0) -> None:
        self.now = self.most = 0
        self.expected = expected
        self.lock = threading.Lock()
        self.free = threading.Event()

    def answer(self, target: NodeTarget) -> str:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now == self.expected:
                # One too many would come within that moment.
                threading.Timer(0.2, self.free.set).start()
        self.free.wait(30)
        with self.lock:
            self.now -= 1
        return target.instance_id


def test_answers_are_in_the_order_of_the_targets_and_each_is_seen() -> None:
    seen: list[str] = []
    found = query_all(nodes(300), lambda target: target.instance_id, seen.append)
    assert found == [f"i-{index}" for index in range(300)] and sorted(seen) == sorted(found)
    assert query_all([], lambda target: target, print) == []


def test_nodes_that_hang_hold_up_no_others() -> None:
    crowd = Crowd()
    targets = nodes(3 * fan_out.BUSY)

    def ask(target: NodeTarget) -> str:
        # All but the last hang until that has been asked: the last one is only begun when the others are passed over.
        if target is targets[-1]:
            crowd.free.set()
            return target.instance_id
        return crowd.answer(target)

    assert len(query_all(targets, ask, lambda answer: None)) == len(targets)


@pytest.mark.parametrize(
    ("soft", "each", "most"),
    [(fan_out.SPARE_DESCRIPTORS + 20, 1, 20), (fan_out.SPARE_DESCRIPTORS + 20, 3, 6), (10, 1, 1)],
)
def test_no_more_at_once_than_there_are_files_to_open(
    monkeypatch: pytest.MonkeyPatch, soft: int, each: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, 4096))
    crowd = Crowd(most)
    query_all(nodes(40), crowd.answer, lambda answer: None, descriptors=each)
    assert crowd.most == most


def test_a_process_that_may_have_no_more_threads_goes_on_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = threading.Semaphore(5)
    start = threading.Thread.start

    def limited(self: threading.Thread) -> None:
        if not alive.acquire(blocking=False):
            raise RuntimeError("can't start new thread")
        start(self)

    def ask(target: NodeTarget) -> str:
        time.sleep(0.01)
        alive.release()
        return target.instance_id

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert len(query_all(nodes(40), ask, lambda answer: None)) == 40


def test_a_defect_in_the_question_is_raised() -> None:
    def ask(target: NodeTarget) -> str:
        raise ZeroDivisionError(target.instance_id)

    with pytest.raises(ZeroDivisionError):
        query_all(nodes(200), ask, lambda answer: None)
