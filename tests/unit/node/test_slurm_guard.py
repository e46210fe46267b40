"""The guard of Slurm: what it makes of its facts, what it puts back and when, what it leaves for reports."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from hyperpod_kit.errors import RunError
from hyperpod_kit.node.health.check_cycle import make_mounts_report
from hyperpod_kit.node.machine.files import read_json, write_json
from hyperpod_kit.node.machine.locks import hold_lock
from hyperpod_kit.node.slurm import hooks, plugin
from hyperpod_kit.node.slurm.drain import SlurmNodeStatus
from hyperpod_kit.node.slurm.guard import commands, mend, report
from hyperpod_kit.node.slurm.guard.collect import ControllerFacts, PlaneFacts
from hyperpod_kit.node.slurm.guard.judge import judge
from hyperpod_kit.run import Completed
from hyperpod_kit.slurm import findings
from hyperpod_kit.slurm.findings import GuardRecord, SlurmFinding, read_guard_record
from hyperpod_kit.slurm.plugin_load import PluginLoad
from hyperpod_kit.slurm.unanswered import diagnose_slurm_command_failure

CONF, PLUGINS = "/opt/slurm/etc/slurm.conf", "/opt/slurm/etc/plugstack.conf"
THEIRS = "ClusterName=demo\nStateSaveLocation=/var/spool/slurmctld\n"
SHARED = "/fsx/.hyperpod-kit/demo/slurmctld"
OURS = [
    "Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh",
    "# why",
    "RequeueExitHold=86",
    f"StateSaveLocation={SHARED}",
]
WANTED = hooks.with_kit_block(THEIRS, OURS)
RUNNING = {
    "slurm_version": "22.05.8",
    "prolog": "/opt/hyperpod-kit/current/slurm/prolog.sh",
    "requeueexithold": "86",
    "statesavelocation": SHARED,
}
HEALTHY = PlaneFacts("n1", "compute", daemon="slurmd.service", daemon_runs=True, plugin=PluginLoad(True))
NOT_LOADED = PluginLoad(False, "spank: /opt/hyperpod-kit/spank/auto_resume.so: Incompatible plugin version")


def facts(conf: Optional[str] = WANTED, plugins: str = "p", **running: str) -> ControllerFacts:
    return ControllerFacts({**RUNNING, **running}, {CONF: conf, PLUGINS: plugins}, {CONF: WANTED, PLUGINS: "p"}, CONF)


def refusal(stderr: str) -> Any:
    return diagnose_slurm_command_failure(RunError(["scontrol"], 1, "", stderr))


NO_PROGRAM = diagnose_slurm_command_failure(RunError(["scontrol"], 127, "", "scontrol: command not found"))

CASES: Dict[str, Any] = {
    "a node that is well": (HEALTHY, {}),
    "munged refuses itself": (replace(HEALTHY, munge="unmunge: Error: Invalid credential"), {"munge-down": True}),
    "another key": (
        replace(HEALTHY, barrier=refusal("Zero Bytes were transmitted or received")),
        {"credential-refused": True},
    ),
    "slurmctld is away": (replace(HEALTHY, barrier=refusal("connect failure")), {"controller-silent": True}),
    "slurmd is dead": (replace(HEALTHY, daemon_runs=False), {"slurmd-down": True}),
    "a hook is gone": (replace(HEALTHY, hooks={"/x/prolog.sh": "is not executable"}), {"hook-file": True}),
    "slurmd has another file": (replace(HEALTHY, fetched=False), {"hooks-not-here": True}),
    "slurmd has our file": (replace(HEALTHY, fetched=True), {}),
    "a plugin of another Slurm": (replace(HEALTHY, plugin=NOT_LOADED), {"plugin-not-loaded": True}),
    "a plugin that cannot be built": (
        replace(HEALTHY, plugin=NOT_LOADED, unbuildable="no compiler found (cc)"),
        {"plugin-not-buildable": False},
    ),
    "a plugin of another Slurm, and none can be built": (
        replace(HEALTHY, plugin=NOT_LOADED, unbuildable="no compiler found (cc)", has_plugin=True),
        {"plugin-not-loaded": True},
    ),
    "no Slurm where there was one": (replace(HEALTHY, barrier=NO_PROGRAM), {"no-slurm": True}),
    "no Slurm, and no trace of any": (replace(HEALTHY, barrier=NO_PROGRAM, traces=False), {"no-slurm": False}),
    "a plugin that nobody names": (replace(HEALTHY, plugin=PluginLoad(False)), {"plugin-not-listed": True}),
    "sbatch could not be asked": (replace(HEALTHY, plugin=PluginLoad()), {}),
    "two Slurms": (replace(HEALTHY, running="24.11.5", installed="25.11.1"), {"two-slurms": True}),
    "two builds of one": (replace(HEALTHY, running="24.11.5", installed="24.11.6"), {}),
    "an old slurmctld says nothing": (replace(HEALTHY, installed="24.11.6"), {}),
    "slurmctld does not know it": (replace(HEALTHY, is_known=False), {"node-unknown": True}),
    "drained": (
        replace(HEALTHY, slurm_node=SlurmNodeStatus("IDLE+DRAIN", "Duplicate jobid", 0.0)),
        {"duplicate-job": True},
    ),
    "drained by an admin": (
        replace(HEALTHY, slurm_node=SlurmNodeStatus("IDLE+DRAIN", "a fan", 0.0)),
        {"drained-by-others": False},
    ),
    "in order": (replace(HEALTHY, controller=facts()), {}),
    "the block is gone, and runs": (replace(HEALTHY, controller=facts(THEIRS)), {"block-missing": True}),
    "the block is there, and does not run": (
        replace(HEALTHY, controller=facts(prolog="")),
        {"block-not-in-force": True},
    ),
    "the state is elsewhere": (
        replace(HEALTHY, controller=facts(statesavelocation="/var/spool/slurmctld")),
        {"state-elsewhere": True},
    ),
    "by another name it is ours": (
        replace(HEALTHY, controller=replace(facts(statesavelocation="/var/spool/slurmctld"), leads_to=SHARED)),
        {},
    ),
    "slurm.conf is not there": (
        replace(HEALTHY, controller=ControllerFacts(problem="the platform has not written it")),
        {"config-unknown": True},
    ),
    "an admin's own Prolog": (
        replace(HEALTHY, controller=replace(facts(), notes=("Prolog is already /x and stays so",))),
        {"overridden": False},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong(case: str) -> None:
    seen, expected = CASES[case]
    found = judge(seen)
    assert {finding.code: finding.fault for finding in found} == expected
    assert all(finding.remedy for finding in found)


def test_our_lines_are_put_back_as_a_whole() -> None:
    planned = mend.plan_restoration(facts(THEIRS, plugins=""))
    assert planned.files == {CONF: WANTED, PLUGINS: "p"} and planned.reconfigure and not planned.refusal
    assert not mend.plan_restoration(facts()).has_anything_to_restore
    # They are there, and slurmctld goes by an older file.
    assert mend.plan_restoration(facts(requeueexithold="")) == mend.Restoration({}, True)


def test_the_state_is_never_moved() -> None:
    """slurmctld has taken a file without our block: it works on its own disk now, and goes on there."""
    own = "/var/spool/slurmctld"
    planned = mend.plan_restoration(facts(THEIRS, statesavelocation=own, prolog=""))
    assert hooks.parse_slurm_conf_settings(planned.files[CONF])["statesavelocation"] == own
    assert hooks.parse_slurm_conf_settings(planned.files[CONF])["prolog"] == RUNNING["prolog"]
    # Nothing more can be done by the guard, and it does not try.
    again = facts(planned.files[CONF], statesavelocation=own)
    assert not mend.plan_restoration(again).has_anything_to_restore
    # What leads to the shared state is the shared state.
    assert mend.plan_restoration(replace(facts(THEIRS, statesavelocation=own), leads_to=SHARED)).files == {CONF: WANTED}


@pytest.mark.parametrize("location", ["/elsewhere", ""])
def test_where_the_file_would_move_the_state_nothing_is_put_back(location: str) -> None:
    planned = mend.plan_restoration(facts(THEIRS, statesavelocation=location, prolog=""))
    assert not planned.has_anything_to_restore and planned.refusal


def test_what_needs_a_restart_stays_as_it_is() -> None:
    accounting = [*OURS, "AccountingStorageType=accounting_storage/slurmdbd"]
    asked = replace(
        facts(THEIRS, accountingstoragetype="accounting_storage/none"),
        expected_texts={CONF: hooks.with_kit_block(THEIRS, accounting), PLUGINS: "p"},
    )
    assert mend.plan_restoration(asked).files[CONF] == WANTED
    there = replace(asked, texts={CONF: hooks.with_kit_block(THEIRS, accounting), PLUGINS: "p"})
    assert not mend.plan_restoration(there).has_anything_to_restore, (
        "the lines are there, and a reconfigure does not help"
    )


def test_who_stands_by_puts_nothing_back() -> None:
    assert not mend.plan_restoration(replace(facts(THEIRS), acting="head-1")).has_anything_to_restore
    assert not mend.plan_restoration(replace(facts(THEIRS), config=None)).has_anything_to_restore, (
        "slurmctld does not answer"
    )


@pytest.fixture
def fake(make_node: Any) -> Any:
    made = make_node([], role="controller")
    for path in ("opt/slurm/etc", "var/lib/hyperpod-kit", "opt/hyperpod-kit/b1/slurm", "opt/slurm/bin"):
        (made.root / path).mkdir(parents=True)
    (made.root / "opt/hyperpod-kit/current").symlink_to("b1")
    write_json(made.node.paths.apply_status, {"ok": True, "bundle_id": "b1", "finished_at": made.clock.wall()})
    return made


def on_disk(fake: Any, conf: str) -> ControllerFacts:
    """The same facts, with the files where the node has them."""
    places = {CONF: fake.node.paths.slurm_conf, PLUGINS: fake.node.paths.plugstack_conf}
    for place, text in ((CONF, conf), (PLUGINS, "p")):
        Path(places[place]).write_text(text)
    asked = facts(conf)
    moved = {places[place]: text for place, text in asked.expected_texts.items()}
    return replace(
        asked,
        texts={places[place]: text for place, text in asked.texts.items()},
        expected_texts=moved,
        slurm_conf=places[CONF],
    )


def round_of(fake: Any, conf: str, noted: Dict[str, Any]) -> mend.Mended:
    return mend.mend_slurm_where_due(fake.node, replace(HEALTHY, controller=on_disk(fake, conf)), noted)


def test_an_agent_that_rewrites_the_file_is_not_raced(fake: Any) -> None:
    noted: Dict[str, Any] = {}
    restored: List[float] = []
    began = fake.clock.wall()
    while fake.clock.wall() - began < 3600:
        done = round_of(fake, THEIRS, noted)
        if done.done:
            restored.append(fake.clock.wall() - began)
        noted = json.loads(json.dumps(done.to_dict()))
        fake.clock.sleep(20.0)
    gaps = [after - before for before, after in zip(restored, restored[1:])]
    assert restored[0] == 0.0 and gaps == sorted(gaps) and gaps[0] <= 40 and 6 <= len(restored) <= 9, restored
    assert sum("reconfigure" in call for call in fake.runner.calls) == len(restored)
    [told] = mend.findings_about_mending(done, fake.clock.wall())
    assert (told.code, told.fault) == ("again-put-back", True) and "undoes it" in told.detail


def test_what_was_put_back_is_told_for_a_while_and_then_forgotten(fake: Any) -> None:
    done = round_of(fake, THEIRS, {})
    assert done.done and Path(fake.node.paths.slurm_conf).read_text() == WANTED
    [told] = mend.findings_about_mending(done, fake.clock.wall())
    assert (told.code, told.fault) == ("put-back", False)
    for seconds, left in ((20.0, 1), (mend.REMEMBERED, 0)):
        fake.clock.sleep(seconds)
        done = round_of(fake, WANTED, done.to_dict())
        assert len(mend.findings_about_mending(done, fake.clock.wall())) == left and not done.done


def test_a_file_that_somebody_writes_in_this_moment_is_left_to_him(fake: Any) -> None:
    seen = on_disk(fake, THEIRS)
    Path(fake.node.paths.slurm_conf).write_text("ClusterName=other\n")
    assert not mend.mend_slurm_where_due(fake.node, replace(HEALTHY, controller=seen), {}).done
    assert Path(fake.node.paths.slurm_conf).read_text() == "ClusterName=other\n"


def test_a_success_after_failures_is_the_first() -> None:
    tries = mend.Tries()
    for at in (0.0, 20.0, 60.0, 140.0):
        tries = tries.after_try(at, "the plugin", "no compiler")
    assert tries.count == 4, "each failure makes the pause longer"
    built = tries.after_try(300.0, "the plugin")
    [told] = mend.findings_about_mending(mend.Mended({mend.BUILT: built}), 301.0)
    assert (told.code, told.fault) == ("plugin-built", False)
    assert tries.after_nothing_to_do(400.0) == mend.Tries(), "somebody else has put it right"
    assert built.after_nothing_to_do(400.0) == built


def test_a_slurmctld_that_refuses_is_told_of_and_asked_later(fake: Any) -> None:
    fake.runner.answers["scontrol reconfigure"] = (1, "slurm_reconfigure error: Unable to contact")
    done = round_of(fake, THEIRS, {})
    [told] = mend.findings_about_mending(done, fake.clock.wall())
    assert (told.code, told.fault) == ("not-put-back", True) and "Unable to contact" in told.detail


DUPLICATE = SlurmNodeStatus("IDLE+DRAIN", "Duplicate jobid", 1_800_000_000.0 - 60)
UNDRAIN = "scontrol update nodename=ip-10-1-0-20 state=undrain"
QUEUE = "squeue --noheader --all --nodelist=ip-10-1-0-20 --format=%i --states=R,CG,S,ST,SI"


@pytest.mark.parametrize(
    ("shown", "queue", "step", "undrained"),
    [
        (DUPLICATE, "", "", True),
        (DUPLICATE, "12\n", "", False),
        (DUPLICATE, (1, "slurmctld is away"), "", False),
        (DUPLICATE, "", "slurmstepd: [12.batch]", False),
        (replace(DUPLICATE, reason_at=1_800_000_000.0 - 5), "", "", False),
        (replace(DUPLICATE, reason_at=0.0), "", "", False),
        (replace(DUPLICATE, reason="Duplicate jobid, says an admin"), "", "", False),
        (replace(DUPLICATE, reason="Low RealMemory"), "", "", False),
        (replace(DUPLICATE, state="DOWN*"), "", "", False),
        (replace(DUPLICATE, state="IDLE"), "", "", False),
    ],
)
def test_only_a_node_without_its_job_is_undrained(
    fake: Any, shown: SlurmNodeStatus, queue: Any, step: str, undrained: bool
) -> None:
    fake.runner.answers[QUEUE] = queue
    if step:
        (fake.root / "proc/77").mkdir()
        (fake.root / "proc/77/cmdline").write_text(step)
        (fake.root / "proc/77/status").write_text("Uid:\t0\t0\t0\t0\n")
        (fake.root / "proc/77/exe").symlink_to("/opt/slurm/sbin/slurmstepd")
    node = replace(HEALTHY, node="ip-10-1-0-20", slurm_node=shown)
    done = mend.mend_slurm_where_due(fake.node, node, {})
    assert (UNDRAIN in fake.runner.calls) is undrained
    assert bool(done.done) is undrained


def test_a_plugin_that_does_not_load_is_built_unless_it_is_what_was_built(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake.root / "usr/include/slurm").mkdir(parents=True)
    (fake.root / "usr/include/slurm/spank.h").write_text("")
    (fake.root / "opt/hyperpod-kit/b1/slurm/plugin").mkdir(parents=True)
    (fake.root / "opt/hyperpod-kit/b1/slurm/plugin/auto_resume.c").write_text("int x;\n")
    place = Path(fake.node.paths.spank_plugin)

    def compile() -> None:
        Path(f"{place}.partial").write_bytes(b"\x7fELF of this Slurm")

    fake.runner.on("cc ", do=compile)
    assert plugin.build_if_outdated(fake.node) and not plugin.build_if_outdated(fake.node)
    place.write_bytes(b"\x7fELF of another Slurm")
    assert not plugin.is_built_from_current_inputs(fake.node), "the note beside it says that it was built for this one"
    sick = replace(HEALTHY, plugin=NOT_LOADED)
    done = mend.mend_slurm_where_due(fake.node, sick, {})
    assert len(done.done) == 1 and "Incompatible plugin version" in done.done[0]
    assert place.read_bytes() == b"\x7fELF of this Slurm"
    # It is what was built, and still does not load: the headers are another Slurm's. Said, and not compiled for ever.
    fake.clock.sleep(100.0)
    again = mend.mend_slurm_where_due(fake.node, replace(sick, installed="25.11.1"), done.to_dict())
    [told] = mend.findings_about_mending(again, fake.clock.wall())
    assert told.code == "not-plugin-built" and told.fault and "25.11.1" in told.detail
    assert sum(call.startswith("cc ") for call in fake.runner.calls) == 2


def worker(fake: Any, monkeypatch: pytest.MonkeyPatch, *, shown: str) -> Any:
    """The node as a worker, whose commands answer so."""
    made = replace(fake.node, facts=replace(fake.node.facts, role="compute"))
    name = made.facts.node
    for hook in ("prolog.sh", "epilog.sh"):
        path = fake.root / "opt/hyperpod-kit/b1/slurm" / hook
        path.write_text("#!/bin/bash\n")
        path.chmod(0o755)
    fake.runner.answers.update(
        {
            f"scontrol --oneliner show node {name}": f"NodeName={name} State={shown}",
            "setpriv": "--auto-resume=0|1|N (hyperpod-kit)",
            "sbatch --version": "slurm-wlm 22.05.8",
            "systemctl show --property MainPID slurmd.service": "MainPID=12\n",
        }
    )
    return made


def test_a_round_leaves_a_record_and_metrics_and_says_what_changed(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = worker(fake, monkeypatch, shown="IDLE Version=22.05.8 Port=1")
    done = commands.check_and_mend_slurm(node)
    assert done is not None and done.record.findings == () and done.messages == (), done
    assert report.recorded_findings_or_guard_silent(node) == []
    sick = worker(fake, monkeypatch, shown="DOWN* Version=24.11.5 Port=1")
    done = commands.check_and_mend_slurm(sick)
    assert done is not None and [one.code for one in done.record.findings] == ["two-slurms", "node-down"]
    assert [words.split(":")[0] for words in done.messages] == ["two-slurms", "node-down"]
    assert read_guard_record(node.paths.slurm_guard_record) == done.record and report.recorded_findings_or_guard_silent(
        node
    ) == list(done.record.findings)
    again = commands.check_and_mend_slurm(sick)
    assert again is not None and again.messages == ()
    text = (fake.root / f"var/lib/node_exporter/textfile_collector/{commands.METRICS}").read_text()
    assert (
        "hyperpod_kit_slurm_faults 2\n" in text
        and 'hyperpod_kit_slurm_finding{code="node-down",fault="true"} 1' in text
    )
    told = make_mounts_report(node, {}, fake.clock.wall(), slurm=report.recorded_findings_or_guard_silent(node))
    assert [one["code"] for one in told["slurm"]] == ["two-slurms", "node-down"]
    over = commands.check_and_mend_slurm(worker(fake, monkeypatch, shown="IDLE Version=22.05.8 Port=1"))
    assert over is not None and over.messages == ("two-slurms: over", "node-down: over")


def test_what_apply_is_at_work_on_is_not_judged(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = worker(fake, monkeypatch, shown="DOWN* Port=1")
    with hold_lock(node, "apply", seconds=0):
        done = commands.check_and_mend_slurm(node)
    assert done is not None and done.record.findings == ()
    assert not [call for call in fake.runner.calls if call.startswith("scontrol")]
    with hold_lock(node, commands.LOCK, seconds=0):
        assert commands.check_and_mend_slurm(node) is None


@pytest.mark.parametrize("status", [{"ok": False, "bundle_id": "b1"}, {"ok": True, "bundle_id": "b0"}])
def test_a_bundle_that_was_not_applied_is_looked_at_and_not_mended(
    fake: Any, monkeypatch: pytest.MonkeyPatch, status: Dict[str, Any]
) -> None:
    node = worker(fake, monkeypatch, shown="IDLE Port=1")
    fake.runner.answers["setpriv"] = Completed((), 0, "", "sbatch: error: spank: /a/auto_resume.so: Dlopen failed\n")
    headers = fake.root / "usr/include/slurm"
    headers.mkdir(parents=True, exist_ok=True)
    (headers / "spank.h").write_text("")
    write_json(node.paths.apply_status, status)
    done = commands.check_and_mend_slurm(node)
    assert done is not None and [one.code for one in done.record.findings] == ["plugin-not-loaded"]
    assert not [call for call in fake.runner.calls if call.startswith("cc -shared")]


def test_a_plugin_that_cannot_be_built_here_is_told_and_not_tried(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = worker(fake, monkeypatch, shown="IDLE Port=1")
    fake.runner.answers["setpriv"] = Completed((), 0, "", "sbatch: error: spank: /a/auto_resume.so: Dlopen failed\n")
    for include in plugin.INCLUDES:
        shutil.rmtree(node.paths.under_root(f"{include}/slurm"), ignore_errors=True)
    done = commands.check_and_mend_slurm(node)
    assert done is not None
    assert [(one.code, one.fault) for one in done.record.findings] == [("plugin-not-buildable", False)]
    assert "slurm/spank.h is in none of" in done.record.findings[0].detail
    assert not [call for call in fake.runner.calls if call.startswith("cc -shared")]
    # One that is there is of another Slurm: what worked here before does not any more.
    there = Path(node.paths.spank_plugin)
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_bytes(b"ELF")
    done = commands.check_and_mend_slurm(node)
    assert done is not None
    assert [(one.code, one.fault) for one in done.record.findings] == [("plugin-not-loaded", True)]
    assert "slurm/spank.h is in none of" in done.record.findings[0].detail


def test_a_guard_that_does_not_look_is_told_of(fake: Any) -> None:
    node, late = fake.node, findings.SILENT_AFTER + 1

    def up_for(seconds: float) -> None:
        Path(node.paths.uptime).write_text(f"{seconds:.2f} 9.00\n")

    up_for(10.0)
    fake.clock.sleep(late)
    assert report.recorded_findings_or_guard_silent(node) == [], "it has just booted"
    up_for(late)
    assert [(one.code, one.fault) for one in report.recorded_findings_or_guard_silent(node)] == [
        (findings.SILENT, False)
    ]
    write_json(
        node.paths.apply_status, {**(read_json(node.paths.apply_status) or {}), "finished_at": fake.clock.wall() - 5}
    )
    assert report.recorded_findings_or_guard_silent(node) == [], "it was made this moment"
    record = GuardRecord(fake.clock.wall(), (SlurmFinding("slurmd-down", "x", "y"),))
    write_json(node.paths.slurm_guard_record, record.to_dict())
    assert report.recorded_findings_or_guard_silent(node) == list(record.findings)
    fake.clock.sleep(late)
    assert [one.code for one in report.recorded_findings_or_guard_silent(node)] == [findings.SILENT]
    other = replace(node, config=replace(node.config, lifecycle_mode="ami_only"))
    assert report.recorded_findings_or_guard_silent(other) == [], "there no guard is started"
