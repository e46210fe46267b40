"""EFA to Lustre: FSx's set-up is started where a node has an EFA and a mount over it, and nothing passes in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.node.machine.step import Step
from hyperpod_kit.node.setup import efa_lustre
from tests.unit.node.fakes import FakeNode

SHOW = "lnetctl net show --net efa"
START = f"systemctl start {efa_lustre.UNIT}"
NETS = "net:\n    - net type: efa\n      local NI(s):\n        - nid: 10.1.0.20@efa\n"


def fake_node(root: Path, *, efa: bool = True, device: bool = True) -> FakeNode:
    mount = LustreMount("fsx", "/fsx", "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com", "abcdefgh", efa=efa)
    if device:
        (root / "sys/class/infiniband/rdmap0").mkdir(parents=True)
    return FakeNode(root, [mount])


def the_step(fake: FakeNode) -> Step:
    (step,) = efa_lustre.STEP.steps_for(fake.node.config, "compute", "g")
    return step


def test_a_node_without_such_a_mount_has_no_such_step(tmp_path: Path) -> None:
    fake = fake_node(tmp_path, efa=False)
    assert efa_lustre.STEP.steps_for(fake.node.config, "compute", "g") == ()


def test_the_set_up_is_started_once(tmp_path: Path) -> None:
    fake = fake_node(tmp_path)
    step = the_step(fake)
    assert step.pending(fake.node) == f"start {efa_lustre.UNIT}" and not step.required
    fake.runner.on(START, do=lambda: fake.runner.on(SHOW, out=NETS))
    assert step.run(fake.node).changed
    assert step.pending(fake.node) == "" and not step.run(fake.node).changed


def test_a_node_without_an_efa_mounts_by_tcp(tmp_path: Path) -> None:
    fake = fake_node(tmp_path, device=False)
    step = the_step(fake)
    assert step.pending(fake.node) == "" and "over TCP" in step.run(fake.node).detail
    assert not fake.runner.calls


def test_a_set_up_that_is_not_there_or_does_nothing_is_named(tmp_path: Path) -> None:
    fake = fake_node(tmp_path)
    with pytest.raises(NodeError, match="LNet has no EFA: Lustre is mounted over TCP"):
        the_step(fake).run(fake.node)
    fake.runner.answers[START] = (5, "Unit configure-efa-fsx-lustre-client.service not found.")
    with pytest.raises(NodeError, match="did not start, so Lustre is mounted over TCP"):
        the_step(fake).run(fake.node)
