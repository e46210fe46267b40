"""The stand-in of HyperPod's step retry, as far as it needs no Slurm: what it makes of Slurm's words."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Dict, List

import pytest

from hyperpod_rehearsal.standins import step_retry
from hyperpod_rehearsal.standins.step_retry import cluster_agent, retry
from hyperpod_rehearsal.standins.step_retry.agent_call import AgentError
from tests.support.capabilities import require

JOB = "JobId=7 UserId=trainer(2001) JobState={state} NodeList=n1,n2 BatchHost=n1 TresPerNode={gres}"


class Slurm:
    """What scontrol is asked and told. `sick`: nodes whose slurmd does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: str = "RUNNING", gres: str = "") -> None:
        self.commands: List[str] = []
        self.sick: List[str] = []
        self._job = JOB.format(state=state, gres=gres)
        monkeypatch.setattr(cluster_agent, "run_scontrol", self.scontrol)
        monkeypatch.setattr(cluster_agent, "is_node_up_and_slurmd_reachable", lambda node: node not in self.sick)

    def scontrol(self, *argv: str) -> str:
        if argv[:3] == ("-o", "show", "job"):
            return self._job
        if argv[:2] == ("show", "hostnames"):
            return argv[2].replace(",", "\n")
        self.commands.append(" ".join(argv))
        return ""


def agent_request(action: str, uid: int = 2001) -> Dict[str, object]:
    return cluster_agent.ClusterAgent().execute_request({"action": action, "job": "7", "uid": uid})


def test_only_a_sick_node_brings_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(monkeypatch)
    assert agent_request("diagnose") == {"action": "NONE"} and not slurm.commands
    slurm.sick = ["n2"]
    assert agent_request("diagnose") == {"action": "RETRYSTEP"}
    assert slurm.commands == ["update nodename=n2 state=fail reason=Action:Replace"]
    assert (
        agent_request("shrink") == {"nodes": "n1", "missing": 1} and slurm.commands[-1] == "update jobid=7 nodelist=n1"
    )


@pytest.mark.parametrize(("gres", "sick"), [("gres/gpu:1", "n2"), ("", "n1")])
def test_gres_and_the_batch_host_mean_a_requeue(monkeypatch: pytest.MonkeyPatch, gres: str, sick: str) -> None:
    slurm = Slurm(monkeypatch, gres=gres)
    slurm.sick = [sick]
    assert agent_request("diagnose") == {"action": "REQUEUEJOB"} and slurm.commands[-1] == "requeue 7"


def test_a_job_that_slurm_has_ended_is_left_alone_and_so_is_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(monkeypatch, state="COMPLETING")
    slurm.sick = ["n2"]
    assert agent_request("diagnose") == {"action": "NONE"} and not slurm.commands
    with pytest.raises(AgentError, match="not uid 1000's"):
        agent_request("diagnose", uid=1000)


def test_nodes_that_srun_was_told_by_name_become_the_jobs_own() -> None:
    arguments = ["--nodes=2", "--nodelist=n[1-2]", "python", "--nodelist"]
    assert [retry.with_new_nodelist(word, "n1,n3") for word in arguments] == [
        "--nodes=2",
        "--nodelist=n1,n3",
        "python",
        "--nodelist",
    ]


def test_the_plugin_compiles_without_a_warning(tmp_path: Path) -> None:
    require("cc", "spank-headers")
    source = Path(step_retry.__file__).with_name("plugin.c")
    target = tmp_path / "plugin.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(source)], check=True
    )
    assert target.stat().st_size
