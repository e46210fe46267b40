"""One node is switched to another bundle, or put back: the script that is sent, and how it is asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest

from hyperpod_kit.remote.connect import ssm_sessions
from hyperpod_kit.remote.draining.slurm_runner import AS_ROOT
from hyperpod_kit.remote.rollout.node_switch import (
    SCRIPT,
    START,
    STARTS,
    NodeSwitch,
    NodeSwitcher,
    SwitchPace,
    SwitchState,
    TargetBundle,
    parse_look,
)
from hyperpod_kit.remote.target import NodeTarget
from tests.unit.remote.rolled_node import RolledNode, make_bundle, wanted

TARGET = NodeTarget("i-1", "worker-group", "compute", "10.0.1.1")


class World:
    """A node with the old bundle, and a new one in S3."""

    def __init__(self, directory: Path) -> None:
        self.s3 = directory / "s3"
        self.old, self.new = make_bundle(self.s3, "old"), make_bundle(self.s3, "new")
        self.node = RolledNode(directory / "node", self.s3, self.old)
        self.now = 0.0
        self.while_waiting: Callable[[], object] = lambda: None

    def switch(self, bundle: TargetBundle | None = None, seconds: float = 100.0) -> NodeSwitch:
        def sleep(pause: float) -> None:
            self.now += pause
            self.while_waiting()

        switcher = NodeSwitcher(lambda target: self.node, SwitchPace(seconds, clock=lambda: self.now, sleep=sleep))
        [ended] = switcher.switch_all({TARGET: bundle or wanted(self.s3, self.new)}, lambda ended: None)
        return ended

    def fails(self, when: str, identity: str) -> None:
        (self.node.root / f"fails-{when}.{identity}").touch()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_bundle_is_fetched_verified_and_entered_in_its_own_mode(world: World) -> None:
    assert world.switch() == NodeSwitch(TARGET, SwitchState.DONE)
    assert world.node.current == world.new and world.node.entered == [f"{world.new} on_init_complete"]
    assert (world.node.root / "opt/hyperpod-kit" / world.old).is_dir(), "the way back"
    assert not (world.node.root / "var/lib/hyperpod-kit/rollout").exists(), "no download is left"


def test_the_way_back_fetches_nothing(world: World) -> None:
    world.switch()
    fetched = (world.node.root / "fetched").read_text()
    ended = world.switch(TargetBundle(world.old, world.old, "s3://gone/"))
    assert ended.state == SwitchState.DONE and world.node.current == world.old
    assert (world.node.root / "fetched").read_text() == fetched


def test_a_damaged_copy_is_fetched_again(world: World) -> None:
    world.switch()
    (world.node.root / "opt/hyperpod-kit" / world.new / "node_config.json").write_text("{}")
    world.switch()
    assert (world.node.root / "fetched").read_text().count("\n") == 2


@pytest.mark.parametrize("name", ["SHA256SUMS", "on_create.sh", "node_config.json"])
def test_nothing_of_another_bundle_is_run(world: World, name: str) -> None:
    bundle = wanted(world.s3, world.new)
    with (world.s3 / world.new / name).open("a") as file:
        file.write("\n")
    ended = world.switch(bundle)
    assert (ended.state, ended.step) == (SwitchState.KEPT, "fetch") and "is not bundle" in ended.error
    assert world.node.entered == [] and world.node.current == world.old


def test_a_download_that_fails_is_told(world: World) -> None:
    ended = world.switch(world_bundle_elsewhere(world))
    assert ended.state == SwitchState.KEPT and "No such file" in ended.error and world.node.entered == []


def world_bundle_elsewhere(world: World) -> TargetBundle:
    return wanted(world.s3, world.new)._replace(uri=f"{world.s3}/gone/")


def test_a_failure_before_the_switch_leaves_the_node_as_it_was(world: World) -> None:
    world.fails("before", world.new)
    ended = world.switch()
    assert ended == NodeSwitch(TARGET, SwitchState.KEPT, "verify-bundle", "disk full", "df")
    assert world.node.current == world.old and ended.runs_a_whole_bundle and len(world.node.entered) == 1


def test_a_failure_after_the_switch_puts_the_node_back(world: World) -> None:
    world.fails("after", world.new)
    ended = world.switch()
    assert ended == NodeSwitch(TARGET, SwitchState.BACK, "mount:fsx", "disk full", "df")
    assert world.node.current == world.old and ended.runs_a_whole_bundle
    assert [line.split()[0] for line in world.node.entered] == [world.new, world.old]


def test_a_node_that_cannot_be_put_back_is_broken(world: World) -> None:
    world.fails("after", world.new)
    world.fails("after", world.old)
    ended = world.switch()
    assert ended.state == SwitchState.BROKEN and not ended.runs_a_whole_bundle


def test_a_unit_of_another_run_is_waited_for(world: World) -> None:
    world.node.unit = "active"

    def later() -> None:
        if world.now >= 50:
            world.node.unit = "inactive"
        assert world.now >= 50 or world.node.starts == 0

    world.while_waiting = later
    assert world.switch().state == SwitchState.DONE and world.node.starts == 1


def test_a_node_that_falls_silent_is_asked_again(world: World) -> None:
    world.node.silent = "no route"

    def back() -> None:
        world.node.silent = "" if world.now >= 20 else "no route"

    world.while_waiting = back
    assert world.switch().state == SwitchState.DONE
    world.node.silent = "no route"
    world.while_waiting = lambda: None
    ended = world.switch(seconds=1000)
    assert (ended.state, ended.error) == (SwitchState.UNKNOWN, "no route")


def test_a_unit_that_ends_without_a_word_is_started_twice_at_most(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperpod_kit.remote.rollout.node_switch.SCRIPT", "exit 1")
    ended = world.switch()
    assert ended.state == SwitchState.UNKNOWN and world.node.starts == STARTS
    assert ended.hint == "on it: journalctl -u hyperpod-kit-rollout"


def test_the_script_fits_into_a_line_of_a_session_and_means_nothing_to_systemd() -> None:
    uri = f"s3://{'b' * 63}/{'p' * 200}/0123456789abcdef/"
    argv = ["sh", "-c", AS_ROOT, "sh", *START, SCRIPT, "bash", "01234567", "0123456789abcdef", "0" * 64, uri]
    assert len(ssm_sessions._encode_command_line(argv, "hpk" + "0" * 16)) < ssm_sessions.LONGEST_LINE
    assert "${" not in SCRIPT and "$$" not in SCRIPT and "%%" not in SCRIPT


@pytest.mark.parametrize("text", ["", "Welcome\n", "== looked\n", "== looked\n\n"])
def test_an_answer_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_look(text)


def test_a_banner_stands_before_the_answer() -> None:
    found = parse_look('Welcome\n== to you\n== looked\n0123456789abcdef\nactive\n{"run": "a"}\nline\n')
    assert (found.current, found.is_active, found.note, found.reason) == (
        "0123456789abcdef",
        True,
        {"run": "a"},
        "line\n",
    )
