"""Directories of groups on real machines, made by `users apply`: members write, others see nothing, a node that takes
another's place has them back, and what is archived stays and opens to nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator

import pytest
from driver import CONFIG, Driver

from tests.rehearsal.test_users import FILE_SYSTEM, HEAD, USERS, WORKER, answers, create, delete

pytestmark = pytest.mark.full

MEMBERS = [*USERS, {"name": "carol", "uid": 3003, "gid": 3003}]
VISION: dict[str, Any] = {"name": "vision", "gid": 3501, "members": ["alice", "bob"]}
SPEECH: dict[str, Any] = {"name": "speech", "gid": 3502, "members": ["bob"], "mounts": ["fsx"]}
SHARES = (("/home/vision", 3501, "alice", "bob"), ("/fsx/speech", 3502, "bob", "bob"))
POLL = ("--interval", "0.5", "--timeout", "150")


def change(config: Path, **own: Any) -> None:
    """Keys of `hyperpod_kit` in the file."""
    values = json.loads(config.read_text())
    values["hyperpod_kit"].update(own)
    config.write_text(json.dumps(values))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = json.loads(CONFIG.read_text())
    cluster = values["hyperpod_kit"]["cluster"]
    cluster["name"] = "shares"
    cluster["instance_groups"][1]["count"] = 1
    path = tmp_path_factory.mktemp("shares") / "provisioning_parameters.json"
    path.write_text(json.dumps(values))
    change(path, mounts=[], users=MEMBERS, groups=[VISION, SPEECH], homes={"file_system_id": FILE_SYSTEM})
    return path


@pytest.fixture(scope="module")
def nodes(endpoint: Driver, config: Path) -> Iterator[dict[str, str]]:
    try:
        report = endpoint.data("users", "apply", str(config))
        assert {one["user"] for one in report["access_points"]} >= {"alice", "bob", "carol"}
        yield create(endpoint, config)
    finally:
        delete(endpoint, config)


def replaced(driver: Driver, config: Path, worker: str) -> str:
    """The instance that has come in the worker's place."""
    driver.kit("replace-node", str(config), worker, "--yes")
    driver.kit("wait", str(config), *POLL)
    (fresh,) = [one for one in driver.data("list-cluster-nodes", str(config))["nodes"] if one["group"] == WORKER]
    assert fresh["instance_id"] != worker
    return str(fresh["instance_id"])


def test_members_share_and_others_see_nothing_on_every_node_and_after_a_removal(
    endpoint: Driver, nodes: dict[str, str], config: Path
) -> None:
    for path, gid, writer, reader in SHARES:
        for node in nodes.values():
            assert endpoint.on(node, f"stat -c '%u:%g %a' {path}").split() == [f"0:{gid}", "2770"]
        # Made on one node, changed on the other; what is made belongs to the group, directories hand that down.
        endpoint.on(nodes[HEAD], f"umask 002; mkdir {path}/run && echo {writer} >{path}/run/note", user=writer)
        seen = f"stat -c '%g %a' {path}/run {path}/run/note; echo {reader} >>{path}/run/note; cat {path}/run/note"
        said = endpoint.on(nodes[WORKER], seen, user=reader).split()
        assert said == [str(gid), "2775", str(gid), "664", writer, reader]
        for stranger in ("carol", *(["alice"] if path == "/fsx/speech" else [])):
            tries = (f"ls {path}/", f"cat {path}/run/note", f"touch {path}/x", f"chmod 777 {path}", f"rm -r {path}/run")
            for node in nodes.values():
                for command, answer in zip(tries, answers(endpoint, node, tries, stranger), strict=True):
                    assert answer.endswith("refused") and writer not in answer.split(), (command, answer)

    nodes[WORKER] = replaced(endpoint, config, nodes[WORKER])
    for path, gid, writer, reader in SHARES:
        look = f"stat -c '%u:%g %a' {path}; cat {path}/run/note; id -nG | tr ' ' '\\n' | grep -c {path.split('/')[-1]}"
        said = endpoint.on(nodes[WORKER], look, user=reader).split()
        assert said == [f"0:{gid}", "2770", writer, reader, "1"], "the node that came has them back"
        assert answers(endpoint, nodes[WORKER], [f"cat {path}/run/note"], "carol")[0].endswith("refused")

    change(config, groups=[{**one, "members": [], "archived": True} for one in (VISION, SPEECH)])
    assert endpoint.data("users", "apply", str(config))["changed"]
    endpoint.kit("upload", str(config))
    endpoint.kit("update-cluster", str(config), "--yes", "--wait", *POLL)
    fresh = nodes[WORKER] = replaced(endpoint, config, nodes[WORKER])
    for user in ("alice", "bob", "carol"):
        reads = [f"cat {path}/run/note" for path, *_ in SHARES]
        assert all(one.endswith("refused") for one in answers(endpoint, fresh, reads, user)), user
        assert endpoint.on(fresh, "cat ~/.profile >/dev/null && id -u", user=user).strip(), "his own home is there"
    assert endpoint.on(fresh, "findmnt /home/vision || echo nothing").strip() == "nothing"
    assert endpoint.on(fresh, "stat -c '%u:%g %a' /fsx/speech; cat /fsx/speech/run/note").split() == [
        "0:0",
        "700",
        "bob",
        "bob",
    ], "archived, with every file"
