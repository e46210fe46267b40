"""Ten inputs as AWS gives them: imported and valid, or refused in one sentence; nothing is lost without a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

import pytest

from tests.support.rows import share
from tests.unit.cli.aws_inputs import INPUTS, NEW, ON_EKS, Input, parameters

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Outcome

    Hk = Callable[..., Outcome]

OF_A_DESCRIPTION = ("ClusterArn", "ClusterStatus", "CreationTime", "FailureMessage", "Status", "CurrentCount")
"""What DescribeCluster adds, and is nobody's wish."""


def leaves(value: Any, place: Tuple[str, ...] = ()) -> Dict[Tuple[str, ...], Any]:
    """Place -> value of everything in a request; a group of instances by its name, not by where it stands."""
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = [
            (one.get("InstanceGroupName", str(number)) if isinstance(one, dict) else str(number), one)
            for number, one in enumerate(value)
        ]
    else:
        return {place: value}
    found: Dict[Tuple[str, ...], Any] = {}
    for key, one in inner:
        found.update(leaves(one, (*place, key)))
    return found


def wanted(given: Input) -> Dict[Tuple[str, ...], Any]:
    """What the input asks AWS for, but for the lifecycle scripts, whose place the bundle takes."""
    request = {"InstanceGroups": given.cluster} if isinstance(given.cluster, list) else given.cluster or {}
    found = {}
    for place, value in leaves(request).items():
        if "LifeCycleConfig" in place or place[-1] in OF_A_DESCRIPTION:
            continue
        found[(*place[:-1], "InstanceCount") if place[-1] == "TargetCount" else place] = value
    return found


def imported(given: Input, place: Path, hk: Hk) -> Tuple[Path, str]:
    """The file that `init` has made, and what it said."""
    made = place / "ours.json"
    words: List[str] = []
    for option, content in (("--from-cluster-config", given.cluster), ("--from-parameters", given.parameters)):
        if content is not None:
            file = place / f"{option[7:]}.json"
            file.write_text(json.dumps(content))
            words += [option, str(file)]
    done = hk("init", *words, *given.flags, str(made))
    assert done.code == 0, done
    return made, done.err


@pytest.mark.parametrize("name", share(INPUTS, 4))
def test_it_is_imported_and_nothing_is_lost_unsaid(name: str, tmp_path: Path, hk: Hk) -> None:
    given = INPUTS[name]
    made, said = imported(given, tmp_path, hk)
    lines = [line for line in said.splitlines() if line.startswith("not carried over: ")]
    assert all(any(note in line for line in lines) for note in given.notes), said
    own = {"the lifecycle scripts at", "the state that AWS's scripts keep"}
    assert len([line for line in lines if not any(one in line for one in own)]) == len(given.notes), said
    checked = hk("validate", str(made))
    assert checked.code == 0 and " is valid" in checked.out, checked
    asked = leaves(json.loads(hk("create-cluster", str(made), "--dry-run", "--json").out))
    for at, value in wanted(given).items():
        lost = asked.get(at) != value
        assert not lost or any(f"{value}" in line for line in lines), f"{name}: {at}: {value} -> {asked.get(at)}"
    file = json.loads(made.read_text())
    for key, value in (given.parameters or {}).items():
        kept = file.get(key) == value
        assert kept or key == "worker_groups" or any(f"{value}" in line for line in lines), f"{name}: {key}: {value}"
    for entry in (given.parameters or {}).get("worker_groups", ()):
        kept = entry in file["worker_groups"]
        assert kept or any(f"`{entry['instance_group_name']}`" in line for line in lines), f"{name}: {entry}"
    assert hk("render", str(made), "--out", str(tmp_path / "bundle")).code == 0


def test_a_worker_group_that_there_is_not_is_left_out_with_a_note(tmp_path: Path, hk: Hk) -> None:
    of_the_readme = INPUTS["README of AWS's scripts"]
    theirs = parameters("", ("compute-nodes", "dev"), ("worker-group-2", "night"))
    made, said = imported(Input(of_the_readme.cluster, theirs, of_the_readme.flags), tmp_path, hk)
    assert "worker group `worker-group-2`: the cluster has no instance group of that name" in said
    assert hk("validate", str(made)).code == 0


def test_a_cluster_on_eks_is_refused_in_one_sentence(tmp_path: Path, hk: Hk) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(ON_EKS))
    words = ("init", "--from-cluster-config", str(tmp_path / "cluster.json"), "--region", "us-west-2")
    done = hk(*words, str(tmp_path / "ours.json"))
    assert done.code == 1 and done.err.splitlines() == [
        "error: this cluster is orchestrated by EKS; only Slurm clusters can be described here"
    ]


@pytest.mark.parametrize("name", [name for name, given in INPUTS.items() if given.parameters])
def test_awss_raw_parameters_lead_to_the_import(name: str, tmp_path: Path, hk: Hk) -> None:
    file = tmp_path / "provisioning_parameters.json"
    file.write_text(json.dumps(INPUTS[name].parameters))
    said = hk("validate", str(file))
    assert said.code == 1 and f"hyperpod-kit init --from-parameters {file}" in said.out and "1 error" in said.out
    made = tmp_path / "ours.json"
    done = hk("init", "--from-parameters", str(file), "--region", "us-west-2", *NEW, str(made))
    assert done.code == 0 and hk("validate", str(made)).code == 0, done
