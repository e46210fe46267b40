"""Processor time until a program does what it was started for, beside a bar. Medians of samples taken in turn.

    python lab/programs/start_up.py [--repeat 10] [--only agent,upload] [--json]

Each row has a limit that is measured in the same run: a bare interpreter; for `import Manager` the process's own time
before the import; for `upload` boto3's own start. What counts is what a row takes beyond its limit. `agent`: until it
is ready; `job run`: until the rank begins; `upload`: the example's bundle into an empty bucket of the rehearsal's S3.
Exit codes: 0 all bars kept, 1 not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "rehearsal")]

from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent  # noqa: E402
from hyperpod_kit.checkpoint.agent_client.agent_supervisor import AgentLink  # noqa: E402
from hyperpod_kit.system.process import this_process  # noqa: E402

CONSOLE_SCRIPT = "import sys; from hyperpod_kit.cli.main import main; sys.exit(main())"
COMPLETING = {"_HYPERPOD_KIT_COMPLETE": "bash_complete", "COMP_WORDS": "hyperpod-kit val", "COMP_CWORD": "1"}
IMPORT_MANAGER = """
import gc, time, torch
full_collections = []
gc.callbacks.append(lambda phase, facts: facts["generation"] == 2 and full_collections.append(time.process_time()))
begin = time.process_time()
from hyperpod_kit.checkpoint import Manager
end = time.process_time()
pairs = zip(full_collections[::2], full_collections[1::2])
print(end - begin, sum(after - before for before, after in pairs))
"""
FIRST_SAVE = """
import sys, time, torch
begin = time.process_time()
from hyperpod_kit.checkpoint import Manager, State
manager = Manager(sys.argv[1])
state = State(torch.nn.Linear(64, 64))
manager.restore(state)
manager.save(0, state)
print(time.process_time() - begin)
manager.close()
"""
BOTO3 = "import boto3; boto3.session.Session(region_name='us-east-1').client('s3')"
SERVE_S3 = """
import sys
from pathlib import Path
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve
store = StoredBuckets(Path(sys.argv[1]))
store.create_bucket(sys.argv[2])
server = serve([("127.0.0.1", 0)], store, None, keys={"test": Key("test", "test")})
print(server.url, flush=True)
sys.stdin.read()
server.close()
"""
"""The stand-in for S3: prints its URL, and serves until its standard input ends."""
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


NOTHING: Mapping[str, str] = {}


class Row(NamedTuple):
    """`sample`: seconds of one run; `limit`: the row that is subtracted from it, "" for none; `bar`: for the rest."""

    sample: Callable[[], float]
    limit: str = ""
    bar: float = 0.0


def environment() -> dict[str, str]:
    """The caller's, with bytecode that is kept, and with this checkout's modules."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    paths = os.pathsep.join((str(ROOT), str(ROOT / "rehearsal")))
    return {**kept, "PYTHONPATH": paths}


def run_and_measure(argv: list[str], directory: Path, extra: Mapping[str, str] = NOTHING) -> float:
    """User and system time of a process and of those that it has waited for."""
    process = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory, env={**environment(), **extra}
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"{argv}: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


class Samples:
    """One function for each row; all that they write is below `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an agent has this process's environment
        self.full_collections: list[float] = []
        """Of each import of the Manager: seconds in full garbage collections, of torch's objects almost alone."""

    def python(self, code: str) -> float:
        return run_and_measure([sys.executable, "-c", code], self._directory)

    def cli(self, *words: str) -> float:
        return run_and_measure([sys.executable, "-c", CONSOLE_SCRIPT, *words], self._directory)

    def completion(self) -> float:
        return run_and_measure([sys.executable, "-c", CONSOLE_SCRIPT], self._directory, COMPLETING)

    def import_manager(self) -> float:
        # In a directory without modules: `python -c` looks into the working directory first.
        argv = [sys.executable, "-c", IMPORT_MANAGER]
        output = subprocess.check_output(argv, cwd=self._directory, env=environment(), text=True)
        seconds, full_collections = map(float, output.split())
        self.full_collections.append(full_collections)
        return seconds

    def first_save(self) -> float:
        """From the import to the first save, in the trainer's process: what the import leaves to later is in it."""
        root = tempfile.mkdtemp(dir=self._directory)
        argv = [sys.executable, "-c", FIRST_SAVE, root]
        output = subprocess.check_output(
            argv, cwd=self._directory, env=environment(), text=True, stderr=subprocess.DEVNULL
        )
        return float(output)

    def agent(self) -> float:
        """Of an agent of a run of one rank, until it is ready; it is killed then."""
        folder = Path(tempfile.mkdtemp(dir=self._directory))
        setup = {
            "root": str(folder / "root"),
            "run": "",
            "run_id": folder.name,
            "rank": 0,
            "world": 1,
            "incarnation": "bench",
            "token": "00" * 16,
            "owner": list(this_process()),
            "addresses": ["127.0.0.1"],
            "versions": {},
            "folder": str(folder),
            "keep": None,
            "again": False,
        }
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        link = AgentLink(setup, ignore_event)
        link.listen()
        link.wait_for_ready_port(60)
        link.kill()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    def job_run(self) -> float:
        """Of `job run --local`, which its rank kills as soon as it begins, and its wrapper with it."""
        root = tempfile.mkdtemp(dir=self._directory)
        main = [sys.executable, "-I", "-S", str(ROOT / "hyperpod_kit/job/__main__.py")]
        kill = "import os; [os.kill(pid, 9) for pid in (int(os.environ['JOB_RUN_PID']), os.getppid())]"
        words = ["run", "--local", "--checkpoint-root", root, "--", sys.executable, "-I", "-S", "-c", kill]
        start = f'export JOB_RUN_PID=$$; exec {" ".join(main)} "$@"'
        return run_and_measure(["/bin/sh", "-c", start, "sh", *words], Path(root))

    def upload(self) -> float:
        folder = Path(tempfile.mkdtemp(dir=self._directory))
        example = folder / "provisioning_parameters.json"
        shutil.copy(ROOT / "provisioning_parameters.example.json", example)
        bucket = json.loads(example.read_text())["hyperpod_kit"]["bundle"]["bucket"]
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE_S3, str(folder / "s3"), bucket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert server.stdin is not None and server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            argv = [sys.executable, "-c", CONSOLE_SCRIPT, "upload"]
            return run_and_measure(argv, folder, {"AWS_ENDPOINT_URL": url, **KEYS})
        finally:
            server.stdin.close()
            server.wait()


def ignore_event(event: AgentEvent) -> None:
    return None


def rows_of(samples: Samples) -> dict[str, Row]:
    bare = "python -c pass"
    return {
        bare: Row(lambda: samples.python("pass")),
        "boto3's client of S3": Row(lambda: samples.python(BOTO3)),
        "python with click": Row(lambda: samples.python("import click")),
        "import Manager, after torch": Row(samples.import_manager, "", 0.08),
        "import Manager to first save": Row(samples.first_save),
        "agent": Row(samples.agent, bare, 0.10),
        "job run": Row(samples.job_run, bare, 0.10),
        "hyperpod-kit --version": Row(lambda: samples.cli("--version"), bare, 0.05),
        "hyperpod-kit --help": Row(lambda: samples.cli("--help"), bare, 0.05),
        "hyperpod-kit explain 86": Row(lambda: samples.cli("explain", "86"), bare, 0.05),
        "hyperpod-kit job --help": Row(lambda: samples.cli("job", "--help"), bare, 0.05),
        "hyperpod-kit create-cluster --help": Row(lambda: samples.cli("create-cluster", "--help"), bare, 0.05),
        "a key press: hyperpod-kit val<TAB>": Row(samples.completion, bare, 0.05),
        "upload": Row(samples.upload, "boto3's client of S3", 0.15),
    }


class Result(NamedTuple):
    seconds: float
    beyond_limit: float
    bar: float
    ratio: float


def measure(rows: dict[str, Row], names: list[str], repeat: int) -> dict[str, Result]:
    """The median of each row. A first run of each, which may compile modules, is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(repeat + 1):
        for name in names:
            sample = rows[name].sample()
            if number > 0:
                seconds[name].append(sample)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    results = {}
    for name, median in medians.items():
        row = rows[name]
        beyond = median - medians.get(row.limit, 0.0)
        ratio = 0.0
        if row.bar:
            ratio = beyond / row.bar
        results[name] = Result(median, beyond, row.bar, ratio)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=10, help="runs of each")
    parser.add_argument("--only", default="", help="rows whose name has one of these words; their limits come along")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hyperpod-kit-start-") as directory:
        samples = Samples(Path(directory))
        rows = rows_of(samples)
        words = args.only.split(",")
        chosen = [name for name in rows if any(word in name for word in words)]
        limits = [name for name in rows if name in {rows[other].limit for other in chosen}]
        results = measure(rows, list(dict.fromkeys([*limits, *chosen])), args.repeat)
    missed = [name for name, result in results.items() if result.ratio > 1]
    if args.json:
        print(json.dumps({name: result._asdict() for name, result in results.items()}))
    else:
        for name, result in results.items():
            line = f"{name:36} {result.seconds:.3f} s"
            if result.bar:
                line += f"  beyond its limit {result.beyond_limit:.3f} s, bar {result.bar:.2f}: {result.ratio:.2f}"
            print(line)
        if samples.full_collections:
            median = statistics.median(samples.full_collections[1:])
            print(f"full garbage collections during import Manager: {median:.3f} s")
        print("all bars kept" if not missed else f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
