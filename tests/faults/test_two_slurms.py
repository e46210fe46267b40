"""What HyperPod has had since 2026: agents that rewrite slurm.conf and cancel hung jobs, automatic patches, Spot, two
Slurms on one image.

The switch of Slurm's version comes last of all rows: slurmctld of the newer one writes a state that the older one does
not read.
"""

from __future__ import annotations

import json
import signal
import time
from typing import Callable, Iterator, List, Tuple, cast

import pytest

from hyperpod_kit.node.slurm.guard.mend import BUILT, RESTORED
from hyperpod_rehearsal.agent.config_agent import MERGE, OVERWRITE, RENDERED
from hyperpod_rehearsal.platform.patching import REASON, WHEN_IDLE
from hyperpod_rehearsal.platform.slurm_conf import PAUSES
from tests.faults.job import Job
from tests.faults.machines import MachineSite
from tests.faults.profiles import OF_2026, PROFILE
from tests.faults.site import Site, not_idle
from tests.support.slurm_guard import CONF, PROLOG, reported_by_all, until_mended, until_no_fault
from tests.support.wait import until

pytestmark = [pytest.mark.machines, pytest.mark.profiles(*OF_2026)]
Row = Callable[..., None]
ENDLESS = ("--steps", "100000", "--pause", "0.1")
STEPS = 400
AGENT_LOG = "/var/log/aws/clusters/sagemaker-config-agent.log"
HANG_LOG = "/var/log/aws/clusters/sagemaker-hang-agent.log"
METADATA = (
    "curl -s -H \"X-aws-ec2-metadata-token: $(curl -s -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "
    'http://169.254.169.254/latest/api/token)" http://169.254.169.254/latest/meta-data/'
)


@pytest.fixture
def site(site: Site) -> Iterator[MachineSite]:
    found = cast(MachineSite, site)
    until_no_fault(found.driver)
    yield found
    found.set_capacity(None)


def goes_on(job: Job, seconds: float = 5.0) -> None:
    """The job does steps from now on, in the attempt that it is in. Raises AssertionError."""
    now = time.time()
    job._wait("steps after it", lambda: job.progress()[-1]["t"] > now + seconds, 180)


def retried_from(job: Job, newest: str) -> None:
    """The last attempt began with that checkpoint or a later one, in the same run of the script."""
    begun = job.rows("attempt")[-1]
    assert begun["from"] >= newest and begun["rejected"] == [], job.told()
    assert job.classes == ["crash"] and job.show()["Restarts"] == "0", job.told()


def set_agent(site: MachineSite, strategy: str, pauses: Tuple[float, float]) -> None:
    settings = json.dumps({"strategy": strategy, "seed": 1, "pauses": pauses})
    site.on("controller", "sh", "-c", f"printf '%s' \"$0\" >{RENDERED}/agent.json", settings)


def test_the_agent_merges_under_a_job(job: Job, site: MachineSite, row: Row) -> None:
    job.submit(*ENDLESS).running()

    def rewritings() -> int:
        return site.on("controller", "cat", AGENT_LOG, check=False).count("wrote slurm.conf")

    before = rewritings()
    set_agent(site, MERGE, (2.0, 3.0))
    try:
        until(lambda: rewritings() >= before + 4, 120, what="slurm.conf rewritten four times")
    finally:
        set_agent(site, MERGE, PAUSES)
    goes_on(job)
    until_no_fault(site.driver)
    assert len(job.rows("attempt")) == 1 and f" {PROLOG}" in site.slurm("scontrol", "show", "config"), job.told()
    row(
        "HyperPod's agent rewrites slurm.conf every three seconds, `Merge`, under a job",
        "our lines are in force all the time, the job does not notice",
        None,
    )


def test_the_agent_overwrites_under_a_job(job: Job, site: MachineSite, row: Row) -> None:
    job.submit(*ENDLESS).running()
    began = time.time()
    set_agent(site, OVERWRITE, (2.0, 3.0))
    try:
        until(lambda: PROLOG not in site.on("controller", "cat", CONF), 60, what="slurm.conf overwritten")
    finally:
        set_agent(site, MERGE, PAUSES)
    try:
        seconds = until_mended(site.driver, "controller", RESTORED, began)
        reported_by_all(site.driver, "controller", "put-back", fault=False)
        newest = job.checkpoints()[-1].name
        resumed = job.resumed(job.send(signal.SIGKILL))
        retried_from(job, newest)
    finally:
        # An administrator's lines, which nobody puts back for him; behind ours the guard would move ours again.
        site.add_to_slurm_conf(f"(cat >/run/added; sed -i '/^# >>> hyperpod-kit$/e cat /run/added' {CONF})")
        site.start_controller()
    row(
        "HyperPod's agent rewrites slurm.conf, `Overwrite`, under a job, then a rank is SIGKILLed",
        "the guard puts our lines back, and all commands that report say so; retried in the allocation",
        resumed,
        f"put back after {seconds:.0f} s",
    )


def test_nodes_are_patched_when_idle(job: Job, site: MachineSite, row: Row) -> None:
    job.submit(*ENDLESS).running()
    working = sorted(job.rows("attempt")[-1]["nodes"])
    [idle] = set(site.nodes) - set(working)
    began = time.time()
    patch = {"PatchingStrategy": WHEN_IDLE, "PatchSchedule": {"NextPatchDate": began}}
    site.update_workers(AutoPatchConfig=patch)
    until(lambda: all(REASON in site.node(node)[1] for node in working), 60, what="cordoned nodes")
    until(lambda: "DRAIN" not in site.node(idle)[0] and REASON not in site.node(idle)[1], 240, what="a patched node")
    patched = time.time() - began
    goes_on(job)
    assert len(job.rows("attempt")) == 1, job.told()
    newest = job.checkpoints()[-1].name
    resumed = job.resumed(job.send(signal.SIGKILL), 240)
    retried_from(job, newest)
    site.slurm("scancel", job.id, user=True)
    until(lambda: not not_idle(site), 300, what="all nodes patched and uncordoned")
    until_no_fault(site.driver)
    row(
        "nodes are patched `WhenIdle` under a job, then a rank is SIGKILLed",
        "the job does not notice the cordon; retried in the allocation, on the cordoned nodes",
        resumed,
        f"the idle node is back after {patched:.0f} s",
    )


def test_spot_takes_a_node_and_capacity_is_late(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1").running()
    host = job.show()["BatchHost"]
    lost = next(node for node in job.rows("attempt")[-1]["nodes"] if node != host)
    gone = site.instance(lost)
    site.set_capacity(0)
    newest = job.checkpoints()[-1].name
    site.give_spot_notice(lost, 15)
    told = until(
        lambda: [text for text in [site.on(lost, "bash", "-c", METADATA + "spot/instance-action")] if "action" in text],
        what="a notice",
    )
    assert json.loads(told[0])["action"] == "terminate"
    at = time.time()
    fault = job.broken(lambda: until(lambda: not site.runs(lost), 60, what="the end of the instance"))
    resumed = job.resumed(fault, 150)
    job.ended_well(STEPS, timeout=180)
    assert job.rows("restored")[-1]["from"] >= newest, job.told()
    until(lambda: "sufficient capacity" in site.message(lost), 60, what="lack of capacity")
    site.set_capacity(None)
    until(lambda: site.instance(lost) != gone and not not_idle(site), 400, what="another instance, at the same address")
    late = time.time() - at
    until_no_fault(site.driver)
    row(
        "Spot takes a worker of a job with a notice; EC2 has no other one for a while",
        "the job goes on with a spare; the node is back once there is capacity",
        resumed,
        f"nodes complete after {late:.0f} s",
    )


def hang_rules(site: MachineSite, name: str, seconds: float) -> List[str]:
    """sbatch's options for a job whose hang HyperPod's agent ends by scancel."""
    rules = site.here / f"{name}.rules.json"
    rules.write_text(json.dumps({"enabled": True, "action": "cancel", "timeout_seconds": seconds}))
    rules.chmod(0o644)
    return ["-N2", f"--export=ALL,HYPERPOD_HANG_RULES={site.there}/{rules.name}"]


def test_hang_rules_and_stall(job: Job, site: MachineSite, row: Row) -> None:
    options = hang_rules(site, job.name, 40)
    job.submit("--steps", str(STEPS), "--pause", "0.1", sbatch=options, options="--stall 8").running()
    resumed = job.resumed(job.send(signal.SIGSTOP))
    job.ended_well(STEPS)
    row(
        "a rank hangs (SIGSTOP), HyperPod's hang rules cancel after 40 s, `--stall 8`",
        "`job run` is faster: ended and retried in the allocation",
        resumed,
    )


def test_hang_rules_cancel_the_job(job: Job, site: MachineSite, row: Row) -> None:
    job.submit(*ENDLESS, sbatch=hang_rules(site, job.name, 10), options="--stall 300").running()
    host = job.show()["BatchHost"]
    began = time.time()
    job.send(signal.SIGSTOP)
    newest = job.checkpoints()[-1].name
    assert job.finish(120) == "CANCELLED", job.told()
    seconds = time.time() - began
    assert "HungJobDetected" in site.on(host, "cat", HANG_LOG), site.on(host, "cat", HANG_LOG)
    following = Job(site, job.name).submit(*ENDLESS)
    following._wait("an attempt of the next job", lambda: following.rows("attempt")[-1]["job"] == following.id, 120)
    assert following.rows("attempt")[-1]["from"] >= newest, following.told()
    assert job.show()["JobState"] == "CANCELLED", job.told()
    row(
        "a rank hangs (SIGSTOP), HyperPod's hang rules cancel after 10 s, `--stall` is longer",
        "ends, and does not come back without `--requeue-after-cancel`; the next job on the root goes on",
        None,
        f"cancelled after {seconds:.0f} s",
    )


def test_hang_rules_cancel_a_job_that_asks_to_come_back(job: Job, site: MachineSite, row: Row) -> None:
    options = "--stall 300 --requeue-after-cancel root"
    job.submit(*ENDLESS, sbatch=hang_rules(site, job.name, 20), options=options).running()
    newest = job.checkpoints()[-1].name
    resumed = job.resumed(job.send(signal.SIGSTOP), 240)
    assert job.classes == ["cancelled_in_hang"] and job.show()["Restarts"] == "1", job.told()
    assert job.rows("attempt")[-1]["from"] >= newest, job.told()
    site.slurm("scancel", job.id, user=True)
    row(
        "a rank hangs (SIGSTOP), HyperPod's hang rules cancel after 20 s, `--requeue-after-cancel root`",
        "`job sweep` finds that root has cancelled it and queues it again; it goes on from the newest",
        resumed,
    )


SWITCH = "ln -sfn slurm-{version} /opt/slurm && systemctl restart {daemon}"


def test_slurm_is_switched_under_a_job(job: Job, site: MachineSite, row: Row) -> None:
    job.submit(*ENDLESS).running()
    began = time.time()
    old, new = f"/opt/slurm-{PROFILE.slurm}", f"/opt/slurm-{PROFILE.second_slurm}"
    site.driver.on(
        "controller",
        f"cp -a {old}/etc/. {new}/etc/ && " + SWITCH.format(version=PROFILE.second_slurm, daemon="slurmctld"),
    )
    until(lambda: "UP" in site.slurm("scontrol", "ping", check=False), 120, what="the newer slurmctld")
    for node in site.nodes:
        site.driver.on(node, SWITCH.format(version=PROFILE.second_slurm, daemon="slurmd"))
    assert PROFILE.second_slurm in site.slurm("sinfo", "--version")
    built = max(until_mended(site.driver, node, BUILT, began) for node in ("controller", *site.nodes))
    goes_on(job)
    assert len(job.rows("attempt")) == 1, job.told()
    newest = job.checkpoints()[-1].name
    resumed = job.resumed(job.send(signal.SIGKILL), 120)
    retried_from(job, newest)
    site.slurm("scancel", job.id, user=True)
    until_no_fault(site.driver)
    row(
        f"`/opt/slurm` is switched from {PROFILE.slurm} to {PROFILE.second_slurm}, all daemons are restarted under a "
        "job, then a rank is SIGKILLed",
        "the job does not notice; the guard builds the plugin anew; retried in the allocation, by the newer srun",
        resumed,
        f"all plugins built after {built:.0f} s",
    )
