"""How far a reader has to go to follow one value: through a save, a restore, a batch, a mount and a job, as they run.

    python lab/programs/value_routes.py [save restore batch mount check job] [--route] [--json]

A save is followed from `Manager.save` with the State that it is given, in its steady state; a restore from
`Manager.restore` with the State; a batch from the data set to what the loop is given. A mount is followed from its
object in the node's configuration through the step of a creation that starts its unit, and through what the unit does;
a check from the same object through a health check. A job is followed from the options of a parsed `job run` through
an attempt that crashes, the decision to try again, and the attempt that is done. Commands of the system and of Slurm
are answered by the stand-ins of the tests; figures of a check are those of root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.command_line.program import parse_command
from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.run.command import RUN, run_options_of
from hyperpod_kit.job.run.supervisor import JobSupervisor
from hyperpod_kit.job.step.scheduler import SlurmScheduler
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.kinds import mount_from_dict, mount_to_dict
from hyperpod_kit.node.commands.mount_commands import ensure_mounted_action
from hyperpod_kit.node.health.check_cycle import check_mounts_and_start_repairs
from hyperpod_kit.node.mounts.bring_up import start_unit_protect_and_copy_homes
from hyperpod_lab.value_route import ValueRoute
from tests.support.runner import RecordingRunner
from tests.unit.node.fakes import FakeNode

ROOT = Path(__file__).resolve().parents[2]
STAND_IN_SRUN = ROOT / "tests/unit/job/fake_srun.py"


def _make_state() -> State:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return State(model, optimizer, extra={"note": "value routes"})


def follow_save(folder: Path) -> ValueRoute:
    """Follow the second save of a run: the first one lays out the shard."""
    state = _make_state()
    with Manager(folder / "root") as manager:
        manager.restore(state)
        manager.save(1, state).wait()
        with ValueRoute(state) as route:
            handle = manager.save(2, state)
        handle.wait()
    return route


def follow_restore(folder: Path) -> ValueRoute:
    """Follow a restore from storage."""
    state = _make_state()
    with Manager(folder / "root") as manager:
        manager.restore(state)
        manager.save(1, state).wait()
    with Manager(folder / "root") as manager, ValueRoute(state) as route:
        manager.restore(state)
    return route


def follow_batch(folder: Path) -> ValueRoute:
    """Follow the data set through the second batch of a loader without workers."""
    corpus = folder / "corpus"
    corpus.mkdir()
    rows = [json.dumps({"text": f"sample {number}"}) for number in range(256)]
    (corpus / "a.jsonl").write_text("\n".join(rows) + "\n")
    build_index([str(corpus)], str(folder / "index"))
    dataset = IndexedDataset(SampleIndex.open(str(folder / "index")))
    batches = iter(ElasticLoader(dataset, batch_size=8, seed=1))
    next(batches)
    with ValueRoute(dataset) as route:
        next(batches)
    return route


MOUNT = EfsMount("home", "/efs/trainer", "fs-0123456789abcdef0", "fsap-0123456789abcdef0")


def follow_mount(folder: Path) -> ValueRoute:
    """Follow a mount through its creation. systemctl does in this process what the unit that it starts does."""
    entry = mount_to_dict(MOUNT)
    with ValueRoute(entry) as route:
        fake = FakeNode(folder, [mount_from_dict(entry)])
        fake.runner.on("systemctl is-active", 3)
        fake.runner.on("systemctl start", do=lambda: ensure_mounted_action(fake.node, "home"))
        fake.runner.on("mount -t efs", do=lambda: fake.mounted("/efs/trainer", "fuse.efs", "127.0.0.1:/"))
        start_unit_protect_and_copy_homes(fake.node, fake.node.mount("home"))
    return route


def follow_check(folder: Path) -> ValueRoute:
    """Follow a mount through the first health check after its creation."""
    fake = FakeNode(folder, [MOUNT])
    fake.runner.on("mount -t efs", do=lambda: fake.mounted("/efs/trainer", "fuse.efs", "127.0.0.1:/"))
    ensure_mounted_action(fake.node, "home")
    with ValueRoute(MOUNT) as route:
        check_mounts_and_start_repairs(fake.node)
    return route


def follow_job(folder: Path) -> ValueRoute:
    """Follow the options of a job whose first attempt crashes."""
    (folder / "srun").symlink_to(STAND_IN_SRUN)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "FAKE_SRUN_LOG": str(folder / "srun.log"),
        "XDG_STATE_HOME": str(folder / "home"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_NTASKS": "1",
        "HPK_AUTO_RESUME": "1",
    }
    slurm = {"squeue job 7": "JobId=7 JobState=RUNNING NodeList=n1 Comment=none", "squeue --steps": "", "scancel": ""}
    words = ["--checkpoint-root", str(folder / "root"), "--backoff", "0.01"]
    crashes_once = ["/bin/sh", "-c", f"mkdir {folder}/once 2>/dev/null || exit 0; exit 3"]
    options = run_options_of(parse_command(RUN, words, "hyperpod-kit job run"), crashes_once)
    with open(folder / "report", "w") as log, ValueRoute(options, options.policy, options.stall) as route:
        scheduler = SlurmScheduler(RecordingRunner(slurm))
        JobSupervisor(options, environment, scheduler=scheduler, report=JobReport(log.fileno())).run()
    return route


FLOWS: dict[str, Callable[[Path], ValueRoute]] = {
    "save": follow_save,
    "restore": follow_restore,
    "batch": follow_batch,
    "mount": follow_mount,
    "check": follow_check,
    "job": follow_job,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flows", nargs="*", metavar="FLOW", help=f"{', '.join(FLOWS)} (default: all)")
    parser.add_argument("--route", action="store_true", help="show each call that is given the value")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    args = parser.parse_args()
    unknown = set(args.flows) - FLOWS.keys()
    if unknown:
        parser.error(f"unknown flow: {', '.join(sorted(unknown))}")
    figures = {}
    for name in args.flows or FLOWS:
        with tempfile.TemporaryDirectory() as folder:
            route = FLOWS[name](Path(folder))
        figures[name] = route.figures()._asdict()
        if args.route:
            for passage in route.passages:
                print(f"{name}: {passage.file} {passage.function} as {', '.join(passage.parameters)}")
    if args.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{'':8}{'functions':>10}{'files':>8}{'returns':>9}{'names':>7}")
    for name, row in figures.items():
        print(f"{name:8}{row['functions']:>10}{row['files']:>8}{row['returns']:>9}{row['names']:>7}")


if __name__ == "__main__":
    main()
