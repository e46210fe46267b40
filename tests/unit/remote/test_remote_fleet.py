"""fleet: from notes as nodes write them to rows, tables and a page; what is wrong first, and nobody injects."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Sequence

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.cli.views.fleet_html import render_fleet_html
from hyperpod_kit.cli.views.fleet_tables import build_fleet_tables, describe_gaps
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import MountState
from hyperpod_kit.node.devices.findings import Cure, DeviceFinding
from hyperpod_kit.node.devices.record import DeviceRecord
from hyperpod_kit.node.observe.health_record import HealthRecord
from hyperpod_kit.remote.fleet.fleet_view import FleetJob, FleetView, Severity, build_fleet_view
from hyperpod_kit.remote.fleet.node_notes import NodeNotes, make_script, parse_files, read_saved_notes, save_notes
from hyperpod_kit.remote.metric_lines import parse_job_series
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.slurm.findings import GuardRecord, SlurmFinding
from tests.support.aws import as_client
from tests.support.http import aws_json
from tests.unit.remote.test_remote_validate_mounts import EXAMPLE, Nodes, ssh

if TYPE_CHECKING:
    from tests.unit.remote.conftest import Network

NOW = 1_800_000_000.0
TIB = 1 << 40
EVIL = '<script>alert(1)</script>"\x1b]0;title\x07\x1b[31m\nerror: none'


def mount(path: str, state: MountState = MountState.OK, used: int = TIB, free: int = TIB) -> HealthRecord:
    name = path.strip("/").replace("/", "-")
    status = MountStatus(name, "lustre", path, state, f"10.0.9.1@tcp:/{name}", used_bytes=used, free_bytes=free)
    return HealthRecord(asdict(replace(status, checked_at=NOW - 20, nearly_full=used > 4 * free)), since=NOW - 600)


def notes(
    number: int,
    mounts: Sequence[HealthRecord] = (),
    *,
    findings: Sequence[DeviceFinding] = (),
    guard: Sequence[SlurmFinding] = (),
    checked_at: float = NOW - 20,
    metrics: str = "",
    group: str = "workers",
) -> NodeNotes:
    """Notes in the forms of the records that the node's own code keeps."""
    device_record = DeviceRecord(NOW, "ml.p5.48xlarge", 8, 8, 32, 32, tuple(findings))
    files = {
        "clock": str(int(NOW)),
        "health": json.dumps(
            {"node": "n", "checked_at": checked_at, "mounts": {str(one.status["name"]): vars(one) for one in mounts}}
        ),
        "devices": json.dumps(
            {**asdict(device_record), "findings": [{**asdict(one), "cure": int(one.cure)} for one in findings]}
        ),
        "slurm": json.dumps(GuardRecord(NOW, tuple(guard)).to_dict()),
        "status": json.dumps({"ok": True, "bundle_id": "0123456789abcdef", "finished_at": NOW - 3 * 86400}),
        "metrics": metrics,
    }
    target = NodeTarget(f"i-{number:017x}", group, "compute", f"10.1.{number // 250}.{number % 250}")
    return NodeNotes(target, "2027-01-01 00:00:00Z", NOW, files)


METRICS = """\
hyperpod_kit_job_goodput_ratio{job_id="7",uid="1001"} 0.913
hyperpod_kit_job_attempts{job_id="7",uid="1001"} 3
hyperpod_kit_job_lost_steps{job_id="7",uid="1001"} 42
hyperpod_kit_job_gpu_seconds_total{job_id="7",uid="1001",cause="steps"} 900000
hyperpod_kit_job_gpu_seconds_total{job_id="7",uid="1001",cause="twice"} 36000
hyperpod_kit_job_gpu_seconds_total{job_id="7",uid="1001",cause="restore"} 7200
hyperpod_kit_checkpoint_durable_step{run="llama",id="0",uid="1001",job_id="7"} 1150
hyperpod_kit_checkpoint_durable_timestamp_seconds{run="llama",id="0",uid="1001",job_id="7"} 1799999940
hyperpod_kit_checkpoint_lost_saves{run="llama",id="0",uid="1001",job_id="7"} 0
"""


def queued(job: str, nodes: str, name: str = "llama", state: str = "RUNNING", user: str = "ada") -> Dict[str, str]:
    return {"JobId": job, "JobState": state, "User": user, "Name": name, "NodeList": nodes}


STATUS: Dict[str, Any] = {
    "time": [
        {
            "job": "7",
            "state": "runs",
            "goodput": 0.92,
            "gpu_seconds": {"lasted": 900000, "twice": 36000, "queue": 0},
            "now": {"at": NOW - 5, "phase": "step", "step": 1207, "step_seconds": 2.5},
        }
    ],
    "saves": {"durable": {"step": 1200, "at": NOW - 30}},
    "attempts": [{"job": "7", "lost": 42, "reached": 1200, "kind": "crash"}, {"job": "7", "kind": "unfinished"}],
}


def three() -> List[NodeNotes]:
    return [
        notes(1, [mount("/fsx"), mount("/efs", MountState.STALE)], metrics=METRICS),
        notes(2, [mount("/fsx", MountState.HUNG), mount("/efs")]),
        notes(3, [mount("/fsx", used=9 * TIB), mount("/efs")]),
    ]


def seen(*more: NodeNotes, queue: Sequence[Dict[str, str]] = (), roots: Sequence[Dict[str, Any]] = ()) -> FleetView:
    return build_fleet_view("demo", NOW, [*three(), *more], queue, roots)


def printed(view: FleetView, width: int = 80, each: bool = False) -> str:
    lines = [table.format(width) for table in build_fleet_tables(view, each)]
    return "\n".join([*lines, *describe_gaps(view)])


def test_what_is_wrong_comes_first_and_hung_is_not_stale() -> None:
    silent = NodeNotes(NodeTarget("i-9", "workers", "", "10.1.0.9"), error="no route to host")
    gone = notes(5, [mount("/fsx")], checked_at=NOW - 900)
    view = seen(silent, gone, notes(4, [mount("/fsx"), mount("/efs")]))
    assert [node.name for node in view.nodes] == [
        "ip-10-1-0-2",
        "ip-10-1-0-1",
        "ip-10-1-0-5",
        "ip-10-1-0-9",
        "ip-10-1-0-3",
        "ip-10-1-0-4",
    ]
    hung, stale, old, quiet, full, well = view.nodes
    assert hung.problems == ("/fsx hung for 10 min",) and stale.problems == ("/efs stale for 10 min",)
    assert "its health checks have stopped: the last was 15 min ago" in old.problems[0]
    assert {cell.state for cell in old.mounts} == {"old"}, "nothing is known of it now"
    assert quiet.severity is Severity.SILENT and quiet.problems == ("no answer: no route to host",)
    assert full.severity is Severity.WARNING and full.problems == ("/fsx 90 % full",)
    assert well.severity is Severity.WELL and well.devices == ("8/8 GPU", "32/32 EFA") and NOW - well.since == 3 * 86400
    assert not view.healthy and [row.path for row in view.storage] == ["/fsx", "/efs"]
    assert dict(view.storage[0].states) == {"ok": 3, "hung": 1, "old": 1} and view.storage[0].fullest == "ip-10-1-0-3"


def test_devices_and_slurm_are_among_what_is_wrong() -> None:
    lost = DeviceFinding("gpu", "missing", "7 of 8 GPUs answer", Cure.REPLACE)
    notice = DeviceFinding("efa", "slow", "a notice", Cure.NOTICE)
    guard = [SlurmFinding("munge", "munged is dead", "systemctl start munge"), SlurmFinding("x", "odd", fault=False)]
    view = build_fleet_view("demo", NOW, [notes(1, [mount("/fsx")], findings=[notice, lost], guard=guard)])
    assert view.nodes[0].problems == (
        "gpu: 7 of 8 GPUs answer",
        "Slurm: munged is dead",
        "efa: a notice",
        "Slurm: odd",
    )


def test_a_node_that_was_set_up_just_now_has_no_fault() -> None:
    young = {"clock": str(int(NOW)), "status": json.dumps({"ok": True, "finished_at": NOW - 14})}
    old = {**young, "status": json.dumps({"ok": True, "finished_at": NOW - 3600})}
    view = build_fleet_view("demo", NOW, [replace(notes(1), files=young), replace(notes(2), files=old)])
    assert [node.severity for node in view.nodes] == [Severity.FAULT, Severity.WARNING]


def test_a_job_has_its_step_rate_losses_and_checkpoint() -> None:
    queue = [queued("7", "ip-10-1-0-[1,3]"), queued("8", "", state="PENDING"), queued("9", "", state="COMPLETED")]
    by_notes = {job.id: job for job in seen(queue=queue).jobs}
    assert set(by_notes) == {"7", "8"}
    assert (by_notes["7"].goodput, by_notes["7"].checkpoint_step, by_notes["7"].lost_steps) == (0.913, 1150, 42)
    assert dict(by_notes["7"].lost) == {"twice": 36000.0, "restore": 7200.0} and by_notes["7"].step is None
    view = seen(queue=queue, roots=[STATUS])
    job = view.jobs[0]
    assert (job.id, job.step, job.step_seconds, job.goodput, job.attempts) == ("7", 1207, 2.5, 0.92, 2)
    assert (job.checkpoint_step, job.checkpoint_at, dict(job.lost)) == (1200, NOW - 30, {"twice": 36000.0})
    assert job.problems == ("node ip-10-1-0-1 not healthy",)
    steps = {node.name: (node.jobs, node.step) for node in view.nodes}
    assert steps["ip-10-1-0-3"] == (("7",), 1207) and steps["ip-10-1-0-2"] == ((), None)
    stuck = {**STATUS, "attempts": [{"job": "7", "kind": "unfinished", "moved": NOW - 3600}]}
    assert seen(queue=queue, roots=[stuck]).jobs[0].problems[0] == "no progress for 60 min"


def test_a_node_publishes_the_step_of_its_job_and_when_that_moved() -> None:
    def job_with(moved: float, roots: Sequence[Dict[str, Any]] = ()) -> FleetJob:
        published = (
            'hyperpod_kit_job_step{job_id="9",uid="1001"} 1206\n'
            f'hyperpod_kit_job_moved_timestamp_seconds{{job_id="9",uid="1001"}} {moved}\n'
            'hyperpod_kit_job_step_seconds{job_id="9",uid="1001"} 2.5\n'
        )
        view = seen(notes(4, metrics=published), queue=[queued("9", "ip-10-1-0-4")], roots=roots)
        assert {node.name: node.step for node in view.nodes}["ip-10-1-0-4"] == view.jobs[0].step
        return view.jobs[0]

    job = job_with(NOW - 60)
    assert (job.id, job.step, job.step_seconds, job.problems) == ("9", 1206, 2.5, ())
    assert job_with(NOW - 3600).problems == ("no progress for 60 min",)
    root = {
        "time": [{"job": "9", "state": "runs"}],
        "attempts": [{"job": "9", "kind": "unfinished", "moved": NOW - 3000}],
    }
    assert job_with(NOW - 3600, [root]).problems == ("no progress for 60 min",), "it is named once"


def test_eighty_columns_cut_no_name_of_a_row() -> None:
    view = seen(queue=[queued("1234567_12", "ip-10-1-0-[1-3]", name="n" * 300)], roots=[STATUS])
    text = printed(view)
    assert max(len(line) for line in text.splitlines() if not line.startswith("step of ")) <= 80
    for word in ("ip-10-1-0-1", "ip-10-1-0-2", f"i-{2:017x}", "1234567_12", "1 hung", "1 stale"):
        assert word in text, text


def test_many_that_are_alike_have_one_row() -> None:
    view = build_fleet_view("demo", NOW, [*three(), *(notes(number, [mount("/fsx")]) for number in range(4, 200))])
    text = printed(view)
    assert "196 nodes" in text and "[4-199]" in "".join(text.split())
    assert len(text.splitlines()) < 45 < len(printed(view, each=True).splitlines())


def test_a_step_that_no_node_publishes_is_unknown_and_how_to_know_it_is_said() -> None:
    queue = [queued("7", "ip-10-1-0-1"), queued("8", "", state="PENDING")]
    text = printed(seen(queue=queue))
    assert "unknown" in text and "step of 7 unknown: --root ROOT reads it" in " ".join(text.split())
    assert "step of 7 unknown: --root ROOT" in render_fleet_html(seen(queue=queue))
    many = [queued(str(number), "ip-10-1-0-1") for number in range(10, 16)]
    assert "step of 10, 11, 12 and 3 more unknown" in " ".join(printed(seen(queue=many)).split())
    told = seen(queue=queue, roots=[STATUS])
    assert told.jobs[0].step == 1207
    assert "unknown: --root" not in " ".join(printed(told).split()) + render_fleet_html(told)


def test_nothing_that_a_user_or_a_node_named_injects() -> None:
    evil = notes(6, [replace(mount("/fsx"), status={**mount("/fsx").status, "path": EVIL, "state": EVIL})])
    lies = notes(7, metrics=f'hyperpod_kit_job_attempts{{job_id="7<b>",uid="1"}} 1\n{EVIL}')
    bad = NodeNotes(NodeTarget(EVIL, EVIL, EVIL, ""), files={"health": '{"mounts": {"a": {"status": 7}}}'})
    status = {**STATUS, "time": [{"job": EVIL, "state": "runs", "gpu_seconds": {EVIL: 1e6}, "now": {"step": EVIL}}]}
    view = seen(evil, lies, bad, queue=[queued("7", "ip-10-1-0-1", name=EVIL, user=EVIL)], roots=[status])
    page, text = render_fleet_html(view), printed(view, each=True)
    assert "<script" not in page and "\x1b" not in page and "\x07" not in page
    assert "\x1b" not in text and "\nerror:" not in text
    assert (
        re.findall(
            r"<(?!/?(?:html|head|div|meta|title|style|body|h1|h2|p|ul|li|table|thead|tbody|tr|th|td|span|i|br|small"
            r"|details|summary|!DOCTYPE)\b)",
            page,
        )
        == []
    )
    assert "\x1b" not in json.dumps(view.to_dict(), ensure_ascii=False)


def test_what_is_no_note_is_said_of_that_node_alone() -> None:
    for health in ("[]", "{", '{"mounts": []}', '{"mounts": {"a": {}}}', "9" * 5000, '{"checked_at": 1e400}', ""):
        odd = replace(notes(8), files={"health": health})
        view = build_fleet_view("demo", NOW, [odd, notes(9, [mount("/fsx")])])
        assert view.nodes[0].severity <= Severity.SILENT and view.nodes[0].problems, health
        assert view.nodes[1].severity is Severity.WELL


def test_series_are_read_as_the_node_writes_them() -> None:
    series = parse_job_series(METRICS + 'hyperpod_kit_job_attempts{job_id="x"} 1\nhyperpod_kit_job_attempts 5\n')
    assert set(series) == {"7"} and series["7"].durable_at == 1799999940.0


def test_json_has_a_format_and_plain_values() -> None:
    data = json.loads(json.dumps(seen(queue=[queued("7", "ip-10-1-0-1")]).to_dict()))
    assert data["nodes"][0]["severity"] == "fault"
    assert data["jobs"][0]["lost"]["twice"] == 36000.0


def test_the_script_reads_files_only_and_runs_in_a_shell(tmp_path: Path) -> None:
    mark = f"@{'1' * 32}@"
    (tmp_path / "hyperpod_kit.prom").write_text(METRICS)
    done = subprocess.run(["/bin/sh", "-c", make_script(mark, str(tmp_path))], capture_output=True, text=True)
    files = parse_files(done.stdout, mark)
    assert list(files) == ["clock", "health", "devices", "slurm", "status", "metrics"]
    assert files["metrics"] == METRICS.strip() and abs(float(files["clock"]) - time.time()) < 60


MEASURED = """
import re, sys, time
from hyperpod_kit.cli.main import run_command_line
began = time.process_time()
code = run_command_line(["fleet", "--notes", sys.argv[1], "--html", sys.argv[2]])
spent = time.process_time() - began
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]  # ru_maxrss is also of what forked it
print(code, spent, peak, file=sys.stderr)
"""


def test_three_thousand_notes_take_seconds_and_little_memory(tmp_path: Path) -> None:
    originals = three()
    copies = []
    for number in range(3000):
        original = originals[number % 3]
        address = f"10.{number // 62500}.{number // 250}.{number % 250}"
        target = replace(original.target, instance_id=f"i-{number:017x}", address=address)
        copies.append(replace(original, target=target))
    save_notes(tmp_path / "notes", copies)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "notes"), str(tmp_path / "fleet.html")],
        capture_output=True,
        text=True,
    )
    code, seconds, kilobytes = done.stderr.splitlines()[-1].split()
    assert code == "1" and float(seconds) < 2.0 and int(kilobytes) < 100_000, done.stderr
    assert "1000 nodes" in done.stdout


def test_notes_that_were_kept_are_read_again(tmp_path: Path) -> None:
    save_notes(tmp_path, three())
    (tmp_path / "broken.notes.json").write_text("{}")
    kept = list(read_saved_notes(tmp_path))
    assert kept[1:] == three() and "cannot be read" in kept[0].error


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    made = Nodes()
    as_client(monkeypatch)
    with aws_json(made.answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield made


def node_answer(command: str) -> tuple[int, str, str]:
    found = re.search("@[0-9a-f]{32}@", command)
    if "squeue" in command:
        assert found is not None
        values = ["7", "", "", "RUNNING", "ada", EVIL, "ip-127-77-0-1"]
        return 0, "".join(f"{value}{found[0]}" for value in values) + "\n", ""
    if found is None:
        return 0, "", ""
    files = notes(1, [mount("/fsx")], metrics=METRICS).files
    return 0, "".join(f"\n{found[0]} {name}\n{text}\n" for name, text in files.items()) + f"\n{found[0]} end\n", ""


def test_fleet_as_an_admin_types_it(
    network: Network, nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.addresses = [network.node(node_answer).address, network.node(node_answer).address, network.silent()]
    words = [
        "fleet",
        str(EXAMPLE),
        "--save",
        str(tmp_path / "notes"),
        "--html",
        str(tmp_path / "f.html"),
        *ssh(network),
    ]
    assert run_command_line([*words, "--json", "--timeout", "5"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [node["severity"] for node in data["nodes"]] == ["silent", "well", "well"]
    assert data["jobs"][0]["id"] == "7" and data["jobs"][0]["checkpoint_step"] == 1150
    assert "<script" not in (tmp_path / "f.html").read_text()
    assert run_command_line(["fleet", "--notes", str(tmp_path / "notes")]) == 1
    captured = capsys.readouterr()
    assert "3 nodes: 1 silent, 2 well" in captured.err and "no answer" in captured.out


def test_watch_draws_again_until_ctrl_c(
    network: Network, nodes: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.addresses = [network.node(node_answer).address]
    pauses: List[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("hyperpod_kit.cli.nodes.fleet_command._sleep", pause)
    assert run_command_line(["fleet", str(EXAMPLE), "--watch", "1", "--json", *ssh(network)]) == 130
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(looks) == 3 and {look["format"] for look in looks} == {"hpk-fleet/1"}, "a line a look"


if __name__ == "__main__":  # a page to look at
    shown = seen(notes(4, [mount("/fsx"), mount("/efs")]), queue=[queued("7", "ip-10-1-0-[1-3]")], roots=[STATUS])
    Path(sys.argv[1]).write_text(render_fleet_html(shown))
    print(printed(shown))
