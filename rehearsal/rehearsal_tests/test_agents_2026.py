"""HyperPod's agents of 2026 as they stand in: slurm.conf rewritten, topology files kept, hung jobs cancelled."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from hyperpod_kit.node.slurm.hooks import kit_block_lines, parse_slurm_conf_settings, with_kit_block
from hyperpod_rehearsal.agent import config_agent, hang_agent
from hyperpod_rehearsal.agent.config_agent import MERGE, OVERWRITE, ConfigAgent, rewritten
from hyperpod_rehearsal.machines import layer
from hyperpod_rehearsal.platform import slurm_conf
from hyperpod_rehearsal.records.profiles import HYPERPOD_2026, STOCK
from rehearsal_tests.test_slurm import cluster

WANTED = slurm_conf.render_slurm_conf(cluster(), 4000, 10, 30, HYPERPOD_2026)
OURS = ["Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh", "StateSaveLocation=/fsx/.hyperpod-kit/x/slurmctld"]
ADMINS = "PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP"
FOUND = with_kit_block(f"{WANTED}{ADMINS}\n", OURS)


def test_merge_renders_its_own_lines_anew_and_keeps_the_others_in_order():
    text = rewritten(FOUND, WANTED, MERGE, random.Random(1))
    assert text != FOUND and kit_block_lines(text) == OURS and ADMINS in text.splitlines()
    before, after = parse_slurm_conf_settings(FOUND), parse_slurm_conf_settings(text)
    assert after == before, "what Slurm goes by is the same"
    assert config_agent.has_nodes_of(text, WANTED)
    again = rewritten(text, WANTED, MERGE, random.Random(2))
    assert sorted(filter(None, again.splitlines())) == sorted(filter(None, text.splitlines()))


def test_overwrite_drops_the_lines_of_others():
    text = rewritten(FOUND, WANTED, OVERWRITE, random.Random(1))
    assert sorted(filter(None, text.splitlines())) == sorted(WANTED.splitlines())


@pytest.fixture
def agent(tmp_path: Path) -> ConfigAgent:
    rendered, etc = tmp_path / "rendered", tmp_path / "etc"
    rendered.mkdir()
    etc.mkdir()
    (rendered / "slurm.conf").write_text(WANTED)
    (etc / "slurm.conf").write_text(FOUND)
    for name, text in slurm_conf.render_agent_files(cluster()).items():
        (rendered / name).write_text(text)
    return ConfigAgent(str(rendered), str(etc))


def test_topology_files_are_kept_at_once_and_slurm_conf_at_moments_that_the_seed_gives(agent, tmp_path):
    assert agent.look(0.0) == ["topology.conf", "topology.yaml"] and agent.look(1.0) == []
    (tmp_path / "etc/topology.conf").write_text("")
    assert agent.look(2.0) == ["topology.conf"]
    assert "ip-10-1-43-18" in (tmp_path / "etc/topology.conf").read_text()
    low, high = slurm_conf.PAUSES
    assert agent.look(low - 1) == [] and agent.look(high + 1) == ["slurm.conf"]
    moments = [now for now in range(int(high) + 2, 1000) if agent.look(float(now))]
    pauses = [after - before for before, after in zip(moments, moments[1:])]
    assert min(pauses) >= low and max(pauses) <= high + 1 and len(set(pauses)) > 3


def test_nodes_that_the_platform_has_changed_are_written_at_once(agent, tmp_path):
    agent.look(0.0)
    (tmp_path / "rendered/slurm.conf").write_text(WANTED.replace("ip-10-1-43-19", "ip-10-1-43-99"))
    assert agent.look(1.0) == ["slurm.conf"]
    assert "ip-10-1-43-99" in (tmp_path / "etc/slurm.conf").read_text()


@pytest.mark.parametrize(("strategy", "acts_as"), [(None, MERGE), ("Managed", MERGE), ("Overwrite", OVERWRITE)])
def test_the_strategy_is_that_of_the_request(strategy, acts_as):
    made = cluster()
    made.request["Orchestrator"] = {"Slurm": {"SlurmConfigStrategy": strategy} if strategy else {}}
    assert json.loads(slurm_conf.render_agent_files(made)["agent.json"])["strategy"] == acts_as


class Job:
    """A job with hang rules, seen by the agent of its batch host; `cancelled`: how often."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, **rules: Any) -> None:
        self.output = directory / "job.out"
        self.output.write_text("step 1\n")
        rules_file = directory / "rules.json"
        rules_file.write_text(json.dumps(rules))
        self.cancelled: List[str] = []
        jobs: Dict[str, str] = {"7": str(rules_file)}
        monkeypatch.setattr(hang_agent, "rules_by_job", lambda: jobs)
        monkeypatch.setattr(hang_agent, "job_output", lambda job, node: str(self.output))
        monkeypatch.setattr(hang_agent, "cancel", self.cancelled.append)
        self.agent = hang_agent.HangAgent("n1")


def test_a_job_whose_output_stands_still_is_cancelled_once(tmp_path, monkeypatch):
    job = Job(tmp_path, monkeypatch, enabled=True, action="cancel", timeout_seconds=10)
    assert job.agent.look(0.0) == [] and job.agent.look(9.0) == []
    job.output.write_text("step 1\nstep 2\n")
    assert job.agent.look(12.0) == [] and job.agent.look(21.0) == [] and job.cancelled == []
    [event] = job.agent.look(23.0)
    assert json.loads(event) == {"event": "HungJobDetected", "JobId": "7", "SilentSeconds": 11, "Action": "cancel"}
    assert job.cancelled == ["7"] and job.agent.look(24.0) == []


@pytest.mark.parametrize(("rules", "events"), [({"enabled": True, "timeout_seconds": 10}, 1), ({"enabled": False}, 0)])
def test_nobody_is_cancelled_who_has_not_asked_for_it(tmp_path, monkeypatch, rules, events):
    job = Job(tmp_path, monkeypatch, **rules)
    job.agent.look(0.0)
    assert len(job.agent.look(4000.0)) == events and job.cancelled == []


def test_rules_are_found_in_the_environments_of_processes(tmp_path):
    for pid, environment in (("1", b"A=1\0"), ("7", b"SLURM_JOB_ID=3\0HYPERPOD_HANG_RULES=/fsx/r.json\0X"), ("x", b"")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").write_bytes(environment)
    assert hang_agent.rules_by_job(str(tmp_path)) == {"3": "/fsx/r.json"}


def test_both_agents_are_units_of_this_profile_alone_and_find_all_that_they_import(tmp_path):
    layer.write_agent_and_standins_into_layer(tmp_path / "stock", STOCK)
    layer.write_agent_and_standins_into_layer(tmp_path / "2026", HYPERPOD_2026)
    units = "etc/systemd/system/multi-user.target.wants"
    for name in (layer.CONFIG_AGENT, layer.HANG_AGENT):
        assert not (tmp_path / "stock" / units / name).is_symlink() and (tmp_path / "2026" / units / name).is_symlink()
    directory = str(tmp_path / "2026") + layer.AGENT_DIRECTORY
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from hyperpod_rehearsal.agent import config_agent, hang_agent"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program, directory], timeout=60, check=True)
