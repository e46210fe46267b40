"""Pages of the program with made-up clusters and jobs, and README.md as GitHub shows it, for screenshots.py."""

from __future__ import annotations

from pathlib import Path

from hyperpod_kit.cli.views import fleet_html
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.job_time import JobState, JobTime
from hyperpod_kit.job.goodput.pieces import TimePiece
from hyperpod_kit.job.status import status_page, timeline
from hyperpod_kit.job.status.timeline import JobAttempt
from hyperpod_kit.remote.fleet.fleet_view import FleetJob, FleetNode, FleetStorage, FleetView, MountCell, Severity

ROOT = Path(__file__).resolve().parent.parent
NOW = 1_800_000_000.0
TIB = 1 << 40
HOUR = 3600.0

_README_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
pre { background: #8882; padding: 1rem; overflow-x: auto; font-size: 85%; line-height: 1.45; }
code { background: #8882; padding: .1em .3em; font-size: 85%; }
pre code { background: none; padding: 0; font-size: 100%; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid #8884; padding: .4rem .8rem; }
img { max-width: 100%; } h1, h2 { border-bottom: 1px solid #8884; padding-bottom: .3em; }
p, li { overflow-wrap: break-word; }
"""


def make_readme_page() -> str:
    """README.md by CommonMark with tables, in a plain page of GitHub's width."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark").enable("table").render((ROOT / "README.md").read_text(encoding="utf-8"))
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><base href="{ROOT.as_uri()}/">'
        "<title>README</title>"
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_README_STYLE}</style></head>'
        f"<body>{body}</body></html>"
    )


def make_fleet_page() -> str:
    """`fleet --html` of 12 nodes: one hangs, one is silent, one is nearly full; two jobs."""
    nodes = [_node(number) for number in range(12)]
    nodes[0] = _node(0, Severity.FAULT, ("/fsx hung for 14 min", "GPU 3: Xid 79, fallen off the bus"), "hung")
    nodes[1] = _node(1, Severity.SILENT, ("no answer: ssh: connect to host 10.1.0.12 port 22: No route to host",))
    nodes[2] = _node(2, Severity.WARNING, ("/opt/dlami/nvme 91 % full",))
    jobs = (
        FleetJob(
            "4711",
            "llama3-70b-pretraining-continued",
            "ada",
            "RUNNING",
            tuple(node.name for node in nodes[:8]),
            120_450,
            2.41,
            0.913,
            {"twice": 40 * HOUR, "restore": 8.5 * HOUR, "queue": 6 * HOUR},
            142,
            4,
            120_400,
            NOW - 130,
            Severity.WARNING,
            (f"node {nodes[0].name} not healthy",),
        ),
        FleetJob("4712", "sweep", "grace", "RUNNING", tuple(node.name for node in nodes[8:]), goodput=0.97, attempts=1),
        FleetJob("4713", "evaluation", "ada", "PENDING"),
    )
    storage = (
        FleetStorage(
            "/fsx", "fsx", "lustre", {"hung": 1, "ok": 10}, 0.62, 62 * TIB, 38 * TIB, "ip-10-1-0-14", Severity.FAULT
        ),
        FleetStorage("/mnt/data", "data", "mountpoint-s3", {"ok": 11}, None, 0, 0, "", Severity.WELL),
        FleetStorage(
            "/opt/dlami/nvme", "nvme", "nvme", {"ok": 11}, 0.91, 25 * TIB, 2 * TIB, "ip-10-1-0-13", Severity.WARNING
        ),
    )
    order = tuple(sorted(nodes, key=lambda node: node.severity))
    return fleet_html.render_fleet_html(FleetView("ml-production", NOW, order, jobs, storage))


def _node(
    number: int, severity: Severity = Severity.WELL, problems: tuple[str, ...] = (), state: str = "ok"
) -> FleetNode:
    cells: tuple[MountCell, ...] = (
        MountCell("fsx", "/fsx", "lustre", "fs-1", state, NOW - 840, True, 0.62, 62 * TIB, 38 * TIB, False),
        MountCell("data", "/mnt/data", "mountpoint-s3", "bucket", "ok", NOW, False, None, 0, 0, False),
        MountCell("nvme", "/opt/dlami/nvme", "nvme", "", "ok", NOW, True, 0.31, 8 * TIB, 19 * TIB, False),
    )
    if severity is Severity.SILENT:
        cells = ()
    return FleetNode(
        f"ip-10-1-0-{11 + number}",
        f"i-{0x0A1B2C3D4E5F0000 + number:017x}",
        "worker-group",
        severity,
        problems,
        cells,
        ("8/8 GPU", "32/32 EFA") if cells else (),
        ("4711",) if number < 8 else ("4712",),
        120_450 if number < 8 else None,
        NOW - 86400 * (number + 1),
    )


def make_job_page() -> str:
    """`job status --html` of a job of 16 nodes with a crash, a hang, a lost node and a requeue, in 15 hours."""
    begin = NOW - 15.2 * HOUR
    names = tuple(f"ip-10-1-0-{number}" for number in range(11, 27))
    ends = (
        (0.0, 3.1, 0, 4400, 12, OutcomeKind.CRASH, "retry in the allocation"),
        (3.12, 6.0, 4388, 8500, 148, OutcomeKind.STALL, "retry in the allocation"),
        (6.02, 10.4, 8352, 14600, 0, OutcomeKind.PREEMPTED, "requeue"),
        (10.9, 12.2, 14600, 16300, 61, OutcomeKind.NODE_LOST, "on a spare node"),
        (12.25, None, 16239, 20510, None, None, ""),
    )
    attempts = []
    pieces: list[TimePiece] = []
    for number, (start, end, step, reached, lost, kind, then) in enumerate(ends):
        name = f"4711-a1b2c3.{number // 3}.{number % 3}"
        over = 15.2 if end is None else end
        attempts.append(
            JobAttempt(
                name,
                "4711",
                begin + start * HOUR,
                kind.value if kind else timeline.UNFINISHED,
                f"seq-{number:06d}.step-{step:010d}.e{number}-9d2f28" if step else None,
                step,
                names,
                ended=None if end is None else begin + end * HOUR,
                seconds=None if end is None else (end - start) * HOUR,
                first={"rank": 37, "node": names[4], "code": 1, "signal": None} if kind is OutcomeKind.CRASH else None,
                nodes_lost=names[3:4] if kind is OutcomeKind.NODE_LOST else (),
                reached=reached,
                then=then,
                lost=lost,
                moved=NOW - 12 if end is None else None,
                tier="memory" if step else None,
            )
        )
        if pieces:
            pieces.append(TimePiece(pieces[-1].end, begin + start * HOUR, TimeCause.QUEUE, gpus=0))
        pieces += _pieces(name, names, begin + start * HOUR, begin + over * HOUR)
    times = [JobTime("4711", pieces, state=JobState.RUNS)]
    return status_page.page("Job 4711", attempts, timeline.totals(attempts, NOW), NOW, times=times, checkpoint=20_500)


def _pieces(attempt: str, names: tuple[str, ...], begin: float, end: float) -> list[TimePiece]:
    """An attempt's time: its start, steps that lasted, and at its end steps that were done twice."""
    cuts = (begin, begin + 180, begin + 240, end - 420, end)
    causes = (TimeCause.START_UP, TimeCause.RESTORE, TimeCause.LASTED, TimeCause.TWICE)
    return [
        TimePiece(start, stop, cause, gpus=128, attempt=attempt, nodes=names)
        for start, stop, cause in zip(cuts, cuts[1:], causes)
    ]
