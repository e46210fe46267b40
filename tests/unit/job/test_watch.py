from __future__ import annotations

from pathlib import Path
from typing import Dict, Mapping, Tuple

from hyperpod_kit.job.step.watch import AwayWatch, NodeWatch, OutputWatch, wait_until_suspects_answer_or_lost
from tests.support.clock import FakeClock


class AskedNodes(FakeClock):
    """A clock and the answers of nodes."""

    def __init__(self, **answers: str) -> None:
        super().__init__()
        self.answers = answers
        self.asked = 0

    def probe(self, addresses: Mapping[str, Tuple[str, int]], timeout: float) -> Dict[str, str]:
        self.asked += 1
        return {name: self.answers[name] for name in addresses}

    def watch(self) -> NodeWatch:
        return NodeWatch({name: ("h", 1) for name in self.answers}, probe=self.probe, clock=self)

    def until_lost(self, watch: NodeWatch, limit: float) -> Tuple[float, list[str]]:
        while self.now < limit:
            lost = watch.probe_if_due_and_list_lost()
            if lost:
                return self.now, lost
            self.now += 0.5
        return self.now, []


def test_a_silent_machine_is_lost_in_seconds() -> None:
    nodes = AskedNodes(n1="open", n2="silent")
    when, lost = nodes.until_lost(nodes.watch(), 60)
    assert lost == ["n2"] and when <= 12


def test_a_restart_of_slurmd_is_survived() -> None:
    nodes = AskedNodes(n1="open", n2="refused")
    watch = nodes.watch()
    assert nodes.until_lost(watch, 20) == (20.0, [])
    nodes.answers["n2"] = "open"
    assert nodes.until_lost(watch, 100) == (100.0, [])
    nodes.answers["n2"] = "refused"
    when, lost = nodes.until_lost(watch, 200)
    assert lost == ["n2"] and 130 <= when <= 140


def test_healthy_nodes_are_asked_seldom() -> None:
    nodes = AskedNodes(n1="open")
    nodes.until_lost(nodes.watch(), 60)
    assert nodes.asked <= 12


def test_settling_ends_when_every_suspect_is_judged() -> None:
    nodes = AskedNodes(n1="open", n2="silent")
    assert wait_until_suspects_answer_or_lost(nodes.watch(), 10.0, nodes.sleep, nodes) == ["n2"]
    assert 6 <= nodes.now <= 10
    calm = AskedNodes(n1="open")
    assert wait_until_suspects_answer_or_lost(calm.watch(), 10.0, calm.sleep, calm) == [] and calm.now == 0
    assert wait_until_suspects_answer_or_lost(None, 10.0, nodes.sleep) == []


def test_settling_waits_for_a_node_that_comes_back() -> None:
    nodes = AskedNodes(n1="silent")
    watch = nodes.watch()

    def sleep(seconds: float) -> None:
        nodes.now += seconds
        nodes.answers["n1"] = "open"

    assert wait_until_suspects_answer_or_lost(watch, 10.0, sleep, nodes) == []


def looked_for(watch: OutputWatch, nodes: AskedNodes, seconds: int) -> bool:
    """Whether it has stalled after so many seconds of a look each."""
    stalled = False
    for _ in range(seconds):
        nodes.now += 1
        stalled = watch.stalled()
    return stalled


def test_output_and_checkpoints_are_progress(tmp_path: Path) -> None:
    nodes = AskedNodes()
    root = tmp_path / "root"
    root.mkdir()
    with open(tmp_path / "out", "w") as out:
        watch = OutputWatch(10.0, str(root), out.fileno(), clock=nodes)
        for change in ("print", "save", "state"):
            assert not looked_for(watch, nodes, 7)
            if change == "print":
                print("step", file=out, flush=True)
            elif change == "save":
                (root / "seq-1").mkdir()
            else:
                (root / ".hpk").mkdir()
            stalled = looked_for(watch, nodes, 3)
            assert stalled == (change == "state"), change


def test_a_start_may_be_silent_for_longer(tmp_path: Path) -> None:
    nodes = AskedNodes()
    with open(tmp_path / "out", "w") as out:
        watch = OutputWatch(10.0, str(tmp_path / "absent"), out.fileno(), clock=nodes)
        assert not looked_for(watch, nodes, 29)
        print("step", file=out, flush=True)
        assert not watch.stalled()
        assert looked_for(watch, nodes, 11)
        silent = OutputWatch(10.0, str(tmp_path / "absent"), out.fileno(), clock=nodes)
        assert looked_for(silent, nodes, 31)


def test_a_watch_that_was_stopped_itself_has_seen_no_silence(tmp_path: Path) -> None:
    """`scontrol suspend` stops `job run` with its ranks."""
    nodes = AskedNodes()
    with open(tmp_path / "out", "w") as out:
        watch = OutputWatch(10.0, str(tmp_path / "absent"), out.fileno(), clock=nodes)
        print("step", file=out, flush=True)
        assert not looked_for(watch, nodes, 5)
        nodes.now += 3600
        assert not watch.stalled()
        assert not looked_for(watch, nodes, 2)
        assert looked_for(watch, nodes, 9)


def test_without_a_limit_nothing_stalls(tmp_path: Path) -> None:
    watch = OutputWatch(0.0, str(tmp_path))
    assert not watch.stalled()


def test_a_node_without_the_root_is_given_up_only_while_it_answers_here() -> None:
    nodes = AskedNodes()
    here = {"answers": True}
    watch = AwayWatch(lambda: here["answers"], patience=10.0, clock=nodes)
    assert watch.lost([]) == [] and watch.seconds_until_next_look is None
    assert watch.lost(["n2"]) == [] and watch.seconds_until_next_look == 1.0
    nodes.now += 9
    here["answers"] = False  # an outage for everybody
    assert watch.lost(["n2"]) == []
    here["answers"] = True
    nodes.now += 9
    assert watch.lost(["n1", "n2"]) == []
    nodes.now += 9
    assert watch.lost(["n2"]) == []  # n1 has taken it back
    nodes.now += 1
    assert watch.lost(["n1", "n2"]) == ["n2"]
