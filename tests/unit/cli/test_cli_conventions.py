"""What all commands have in common, whichever parser they have; and first files that come from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from hyperpod_kit.cli.cluster import list_commands
from hyperpod_kit.cluster.nodes import ClusterNode

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Outcome

    Hk = Callable[..., Outcome]

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
THEIRS: dict[str, Any] = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "controller-group",
    "login_group": "my-login-group",
    "worker_groups": [{"instance_group_name": "worker-group-1", "partition_name": "ml.p5.48xlarge"}],
}


@pytest.mark.parametrize(
    "words",
    [["job"], ["job", "run"], ["checkpoint"], ["checkpoint", "verify"], ["fan-out"], ["data", "show"]],
)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_has_one_shape(words: list[str], option: str, hk: Hk) -> None:
    shown = hk(*words, option)
    lines = shown.out.splitlines()
    assert shown.code == 0 and lines[0].startswith(f"Usage: hyperpod-kit {' '.join(words)} "), shown
    assert lines[-2 if words[-1] in ("job", "checkpoint") else -1].strip() and "Options:" in lines
    assert any(line.endswith("Show this message and exit.") for line in lines)


def test_help_of_a_line_for_sbatch_is_ours_only_in_front(hk: Hk) -> None:
    assert hk("job", "submit", "--help").out.startswith("Usage: hyperpod-kit job submit")
    later = hk("job", "submit", "nowhere.sbatch", "--help")
    assert "Usage: hyperpod-kit job" not in later.out


@pytest.mark.parametrize(
    "words",
    [
        ["--debug", "validate", "none.json"],
        ["validate", "none.json", "--debug"],
        ["checkpoint", "verify", "/nowhere/at/all", "--debug"],
        ["--debug", "checkpoint", "pin", "/nowhere/at/all", "x"],
        ["data", "verify-ledger", "/nowhere/at/all", "--debug"],
    ],
)
def test_a_stack_trace_where_it_is_asked_for(words: list[str], hk: Hk) -> None:
    assert "Traceback" in hk(*words).err
    assert "Traceback" not in hk(*(word for word in words if word != "--debug")).err


def test_debug_behind_two_dashes_is_the_jobs(hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperpod_kit.job import cli

    seen: list[Any] = []
    monkeypatch.setattr(cli, "main", lambda words: seen.append(words) or 0)
    assert hk("job", "run", "--debug", "--checkpoint-root", "/r", "--", "python", "--debug").code == 0
    assert hk("job", "submit", "a.sbatch", "--debug").code == 0
    assert seen[0][-3:] == ["--", "python", "--debug"] and "--debug" not in seen[0][:-3]
    assert seen[1] == ["submit", "a.sbatch", "--debug"]


def test_awss_own_file_leads_to_the_import(tmp_path: Path, hk: Hk) -> None:
    file = tmp_path / "pp.json"
    file.write_text(json.dumps(THEIRS))
    said = hk("validate", str(file))
    assert said.code == 1 and f"init --from-parameters {file}" in said.out and "1 error" in said.out


def test_a_key_that_the_import_does_not_know_is_named_and_left_out(tmp_path: Path, hk: Hk) -> None:
    """AWS's Terraform module writes login_group into the entries of worker_groups."""
    theirs = {**THEIRS, "worker_groups": [{**THEIRS["worker_groups"][0], "login_group": "login-nodes"}]}
    (tmp_path / "pp.json").write_text(json.dumps(theirs))
    groups = [
        {"InstanceGroupName": name, "InstanceType": "ml.c5.xlarge", "InstanceCount": 1}
        for name in ("controller-group", "worker-group-1")
    ]
    (tmp_path / "cc.json").write_text(json.dumps({"ClusterName": "ml", "InstanceGroups": groups}))
    made = tmp_path / "ours.json"
    said = hk(
        *("init", "--from-cluster-config", str(tmp_path / "cc.json"), "--from-parameters", str(tmp_path / "pp.json")),
        *("--region", "us-west-2", "--execution-role", "arn:aws:iam::111122223333:role/r", str(made)),
    )
    assert "not carried over: `login_group` of an entry of worker_groups" in said.err, said
    assert json.loads(made.read_text())["worker_groups"] == THEIRS["worker_groups"]


def test_a_file_of_another_kind_is_not_listed_key_by_key(tmp_path: Path, hk: Hk) -> None:
    values = json.loads(EXAMPLE.read_text())
    file = tmp_path / "c.json"
    file.write_text(json.dumps({**values, **{f"key{number}": 1 for number in range(5000)}}))
    said = hk("validate", str(file))
    assert said.code == 1 and "4980 more unknown keys" in said.out and "21 errors" in said.out
    file.write_text(json.dumps(values)[:-1] + ', "n": ' + "9" * 5000 + "}")
    assert "a number of thousands of digits" in hk("validate", str(file)).err


def test_findings_grow_with_the_file_and_not_with_its_square(tmp_path: Path, hk: Hk) -> None:
    values = json.loads(EXAMPLE.read_text())
    mount = values["hyperpod_kit"]["mounts"][0]
    values["hyperpod_kit"]["mounts"] = [{**mount, "name": f"m{number}"} for number in range(100)]
    file = tmp_path / "c.json"
    file.write_text(json.dumps(values))
    assert "99 errors" in hk("validate", str(file)).out.splitlines()[-1]


def test_text_that_is_shown_in_another_order_is_refused(tmp_path: Path, hk: Hk) -> None:
    values = json.loads(EXAMPLE.read_text())
    file = tmp_path / "c.json"
    file.write_text(json.dumps({**values, "version": "1\u202e0"}))
    assert "HPK-C007" in hk("validate", str(file)).out


@pytest.mark.parametrize("width", [30, 40, 71, 80])
def test_no_id_is_cut_on_a_narrow_screen(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hyperpod_kit.cli.terminal.output.screen_width", lambda: width)
    node = ClusterNode("workers", "i-00000000000000001", "ml.c5.large", "Running", "", "10.1.2.3", "2026")
    list_commands._print_nodes("demo", [node])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("i-00000000000000001", "10.1.2.3", "Running", "workers"))
