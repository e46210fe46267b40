"""Every command that asks AWS, against an AWS that lies: right exit code, clean words, bounded output, no defect.

The commands run in this process, against a real socket; what an answer may take is in test_limits.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Tuple

import pytest

from hyperpod_kit.aws import back_off, responses
from hyperpod_kit.cli.main import run_command_line
from tests.hostile.aws import objects
from tests.hostile.aws.service import AT_ONCE, Liar
from tests.support.rows import share

REPOSITORY = Path(__file__).resolve().parents[3]
COMMANDS: Dict[str, List[str]] = {
    "upload": ["upload"],
    "diff": ["diff"],
    "describe-cluster": ["describe-cluster"],
    "describe-cluster --json": ["describe-cluster", "--json"],
    "list-cluster-nodes": ["list-cluster-nodes"],
    "list-cluster-nodes --json": ["list-cluster-nodes", "--json"],
    "events": ["events"],
    "diagnose": ["diagnose", "--timeout", "3", "--connect-timeout", "1"],
    "validate-mounts --via pull": ["validate-mounts", "--via", "pull"],
    "wait": ["wait", "--timeout", "1", "--interval", "0.2"],
    "update-cluster": ["update-cluster", "--dry-run"],
    "delete-cluster": ["delete-cluster", "--yes"],
    "validate --aws": ["validate", "--aws"],
}
BELIEVED = ("evil", "lengthy")
"""Modes whose answers are whole and of the right shape: what they say is shown."""
OF_LISTS = ("list-cluster-nodes", "list-cluster-nodes --json", "events")
"""Commands that would say "0 of them" of an answer that holds none."""


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    server = Liar()
    yield server
    server.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, liar: Liar) -> Path:
    shutil.copy(REPOSITORY / "provisioning_parameters.example.json", tmp_path / "provisioning_parameters.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPK_KNOWN_HOSTS", raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": liar.url,
        "AWS_ACCESS_KEY_ID": "t",
        "AWS_SECRET_ACCESS_KEY": "t",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(back_off.retry_while_throttled.__kwdefaults__ or {}, "patience", 0.0)
    monkeypatch.setitem(responses.fetch_pages.__kwdefaults__ or {}, "most", 20)
    return tmp_path


def asked(argv: List[str], capfd: pytest.CaptureFixture[str]) -> Tuple[int, str]:
    """The exit code and all that was said."""
    capfd.readouterr()
    try:
        code = run_command_line(argv)
    except SystemExit as err:
        code = int(err.code or 0)
    out, told = capfd.readouterr()
    if code == 0 and "--json" in argv:
        json.loads(out)
    return code, out + told


def check(mode: str, names: Iterable[str], capfd: pytest.CaptureFixture[str]) -> None:
    for name in names:
        code, said = asked(COMMANDS[name], capfd)
        where = f"{mode}: {name}: {code}: {said[-600:]}"
        assert code in (0, 1, 3), where
        assert all(char.isprintable() or char == "\n" for char in said), where
        assert "defect of hyperpod-kit" not in said and "Traceback" not in said, where
        assert len(said) < 100_000 or "--json" in name, where
        if mode not in (*BELIEVED, *objects.MODES) and name in OF_LISTS:
            assert code in (1, 3), where


@pytest.mark.parametrize("mode", share(AT_ONCE, 12))
def test_a_list_is_not_believed_blindly(mode: str, place: Path, liar: Liar, capfd: pytest.CaptureFixture[str]) -> None:
    liar.mode = mode
    check(mode, OF_LISTS, capfd)


@pytest.mark.full
@pytest.mark.parametrize("mode", [*AT_ONCE, *objects.MODES])
def test_no_command_is_fooled(mode: str, place: Path, liar: Liar, capfd: pytest.CaptureFixture[str]) -> None:
    liar.mode = mode
    check(mode, COMMANDS, capfd)


@pytest.mark.parametrize("mode", ["trunc", "empty", "badhdr", "wrong4", "wrong6", "wrong7"])
def test_a_list_that_is_cut_off_is_not_an_empty_one(
    mode: str, place: Path, liar: Liar, capfd: pytest.CaptureFixture[str]
) -> None:
    liar.mode = mode
    code, said = asked(["list-cluster-nodes"], capfd)
    assert code == 3 and "cannot be read" in said and "0 nodes" not in said


def test_fewer_nodes_than_a_cluster_is_to_have_is_a_finding(
    place: Path, liar: Liar, capfd: pytest.CaptureFixture[str]
) -> None:
    liar.mode = "nobody"
    code, said = asked(["diagnose"], capfd)
    assert code == 1 and "worker-group: 3 nodes requested, 0 listed by AWS" in said and "0 unhealthy, 4 missing" in said
    code, said = asked(["diagnose", "--json"], capfd)
    assert code == 1 and {"group": "worker-group", "wanted": 3, "listed": 0} in json.loads(said)["few"]
    code, said = asked(["validate-mounts", "--via", "pull"], capfd)
    assert code == 1 and "has no nodes" in said
    code, said = asked(["wait", "--timeout", "1", "--interval", "0.2"], capfd)
    assert code == 3 and "worker-group 0 of 3 running" in said


def test_a_good_answer_is_believed(place: Path, liar: Liar, capfd: pytest.CaptureFixture[str]) -> None:
    liar.mode = "good"
    code, said = asked(["list-cluster-nodes"], capfd)
    assert code == 0 and "4 nodes, 4 running" in said
