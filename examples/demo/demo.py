"""The whole path on a rehearsal cluster: bundle, cluster, mounts, job, dead machine, resumed job, same weights.

    python examples/demo/demo.py [--keep] [--steps N] [--root s3] [--container]

Each step prints its time. A step that fails ends the demo with exit code 1, the reason and where the logs are; the
machines are taken down in any case unless --keep.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import boto3
import containers
import corpus
import environment
from driver import LIVE, TRAIN, DemoError, Driver, events, steps, wait_until
from leftovers import leftovers
from rich.console import Console
from rich.table import Table

console = Console(highlight=False)
DATA_BUCKET, DATA_PREFIX = "sagemaker-hyperpod-kit-data", "corpus/"
WINDOWS, WINDOW = 2 * 4, 128 + 1
"""Of a step: two ranks with four windows each. Of a window: bytes. As in examples/gpt/train.py."""
GO_ON = "/fsx/trainer/go-on"
"""The disturbed run does not go beyond two thirds of its steps before this file is there: where the demo is late, the
run would have ended before its machine is killed."""

IMAGE = f"{containers.IMAGES}/{containers.PYTHON}"
CACHE = Path(os.environ.get("HPK_CACHE", Path.home() / ".cache" / "hyperpod-kit"))


@dataclass
class Demo:
    """The state that one step leaves for the next."""

    driver: Driver
    total_steps: int
    in_s3: bool = False
    in_container: bool = False
    facts: Dict[str, Any] = field(default_factory=dict)

    def prepare_environment(self) -> str:
        CACHE.mkdir(parents=True, exist_ok=True)
        self.facts["environment"] = environment.build(CACHE)
        self.facts["trees"] = [containers.build(CACHE)] if self.in_container else []
        inside = f"; an image with a Python at {IMAGE}, for " + (
            "enroot and pyxis" if containers.real() else "a stand-in of pyxis"
        )
        return f"torch for the nodes' Python, shared read-only at {TRAIN}{inside if self.in_container else ''}"

    def boot_endpoint(self) -> str:
        self.driver.up({self.facts["environment"]: TRAIN}, echo=True, trees=self.facts["trees"])
        return self.driver.environment["AWS_ENDPOINT_URL"]

    def put_corpus(self) -> str:
        os.environ.update(self.driver.environment)
        # One epoch in all steps: so the ledger can say of every sample that it was received once.
        wanted = self.total_steps * WINDOWS * WINDOW
        size = corpus.upload(self.driver.environment["AWS_ENDPOINT_URL"], DATA_BUCKET, DATA_PREFIX, wanted)
        return f"{size / 1e3:.0f} kB of the standard library's sources in s3://{DATA_BUCKET}/{DATA_PREFIX}"

    def validate(self) -> str:
        return self.driver.said("validate", str(self.driver.config))

    def render(self) -> str:
        target = self.driver.logs / "bundle"
        self.driver.kit("render", str(self.driver.config), "--out", str(target))
        return f"{sum(1 for path in target.rglob('*') if path.is_file())} files, byte for byte what nodes will run"

    def upload(self) -> str:
        return self.driver.said("upload", str(self.driver.config))

    def create_cluster(self) -> str:
        self.driver.kit("create-cluster", str(self.driver.config), "--wait", timeout=300, echo=True)
        if not self.in_container:
            return f"{len(self.driver.nodes())} nodes, InService"
        containers.add_pyxis(self.driver)
        return f"{len(self.driver.nodes())} nodes, InService, srun knows --container-image"

    def validate_mounts(self) -> str:
        self.driver.kit("validate-mounts", str(self.driver.config), echo=True)
        return "every mount of every node is ok"

    def submit(self) -> str:
        held = ("--hold-at", str(self.total_steps * 2 // 3), "--hold-until", GO_ON)
        self.facts["job"] = job = self._submit("disturbed", *held)
        where = f", checkpoints in {self._root('disturbed')}" if self.in_s3 else ""
        where += f", ranks in containers of {IMAGE}" if self.in_container else ""
        return f"sbatch --auto-resume=1 -> job {job}, as user trainer, two nodes{where}"

    def train_a_while(self) -> str:
        job, goal = self.facts["job"], self.total_steps // 3

        def far_enough() -> bool:
            done = steps(self._output_of_live(job))
            return bool(done) and done[-1] >= goal and self._durable() >= 2

        wait_until(f"step {goal} and two committed checkpoints", far_enough, timeout=180)
        return f"step {steps(self.driver.output(job))[-1]}, {self._durable()} checkpoints committed"

    def kill_a_machine(self) -> str:
        job = self.facts["job"]
        victim = self.driver.job_nodes(job)[-1]
        self.facts["victim"] = victim
        self.facts["before"] = {node["instance_id"] for node in self.driver.nodes()}
        self.driver.kit("rehearse", "kill-node", "--name", self.driver.name, victim)
        self.facts["killed_at"] = time.time()
        self.facts["steps_before"] = steps(self.driver.output(job))[-1]
        self.driver.on("controller", f"touch {GO_ON}", user="trainer")
        return f"SIGKILL to the whole machine {victim} at step {self.facts['steps_before']}"

    def node_is_replaced(self) -> str:
        def replaced() -> List[Dict[str, Any]]:
            nodes = self.driver.nodes()
            fresh = [node for node in nodes if node["instance_id"] not in self.facts["before"]]
            return fresh if fresh and all(node["status"] == "Running" for node in nodes) else []

        fresh = wait_until("replacement of the machine", replaced, timeout=120)
        seconds = time.time() - self.facts["killed_at"]
        self.driver.kit("validate-mounts", str(self.driver.config))
        return (
            f"{self.facts['victim']} is now {fresh[0]['instance_id']}, mounts back by the bundle, "
            f"{seconds:.1f} s after the kill"
        )

    def job_resumes(self) -> str:
        job = self.facts["job"]

        def restored() -> Dict[str, Any]:
            found = [event["restored"] for event in events(self._output_of_live(job)) if "restored" in event]
            return found[-1] if found and found[-1]["kind"] == "Restored" else {}

        got = wait_until("resumed attempt", restored, timeout=180)
        lost = self.facts["steps_before"] - got["step"]
        # When it resumed stands in the job's own ledger: this demo was busy watching the machine meanwhile.
        seconds = self._attempts(job)[-1]["t"] - self.facts["killed_at"]
        return (
            f"from {got['checkpoint_id']} (step {got['step']}, {got['tier']} tier), {lost} steps lost, "
            f"started {seconds:.1f} s after the kill"
        )

    def job_ends(self) -> str:
        self.facts["weights"] = self._finish(self.facts["job"])
        return f"step {self.total_steps}, weights sha256 {self.facts['weights'][:16]}…"

    def every_sample_once(self) -> str:
        command = f"{TRAIN}/bin/python3 -m hyperpod_kit.data.cli verify-ledger /fsx/trainer/disturbed/ledger --json"
        found = json.loads(self.driver.on("controller", command, user="trainer", check=False))
        once = [epoch for epoch in found["epochs"] if epoch["complete"] and epoch["once"] == found["samples"]]
        if not found["good"] or len(once) != 1 or found["launches"] < 2:
            raise DemoError(f"the ledger does not show every sample exactly once: {found}")
        return (
            f"every sample exactly once: {found['samples']} of {found['samples']}, across {found['launches']} starts, "
            f"{found['rolled_back']} steps rolled back with their checkpoint"
        )

    def same_without_disturbance(self) -> str:
        weights = self._finish(self._submit("undisturbed"))
        if weights != self.facts["weights"]:
            raise DemoError(f"weights differ: disturbed {self.facts['weights']}, undisturbed {weights}")
        return f"bit-identical: sha256 {weights[:16]}…"

    def _root(self, run: str) -> str:
        return f"s3://{DATA_BUCKET}/checkpoints/{run}" if self.in_s3 else f"/fsx/trainer/{run}"

    def _submit(self, run: str, *options: str) -> str:
        more = {}
        if self.in_s3:
            # Of AWS itself a node knows where it is, and with the role of the node everything else.
            more = {"WORK": f"/fsx/trainer/{run}", "AWS_ENDPOINT_URL": self.driver.endpoint_of_nodes()}
            self.driver.on("controller", f"install -d -o trainer -g trainer /fsx/trainer /fsx/trainer/{run}")
        if self.in_container:
            mounts = f"/fsx:/fsx,/mnt/data:/mnt/data:ro,{TRAIN}:{TRAIN}:ro"
            more["SRUN_ARGS"] = f"--container-image={IMAGE} --container-mounts={mounts}"
        script = f"{TRAIN}/gpt/train.sbatch"
        return self.driver.submit(script, str(self.total_steps), *options, root=self._root(run), variables=more)

    def _finish(self, job: str) -> str:
        def ended() -> str:
            state = self.driver.job_state(job)
            return "" if state in LIVE else state

        state = wait_until(f"end of job {job}", ended, timeout=300, every=1)
        weights = [event["weights_sha256"] for event in events(self.driver.output(job)) if "weights_sha256" in event]
        if state != "COMPLETED" or not weights:
            raise DemoError(f"job {job} is {state}\n" + "\n".join(self.driver.output(job).splitlines()[-15:]))
        return str(weights[-1])

    def _output_of_live(self, job: str) -> str:
        state = self.driver.job_state(job)
        output = self.driver.output(job)
        if state in ("FAILED", "CANCELLED", "SPECIAL_EXIT", "TIMEOUT", "OUT_OF_MEMORY"):
            raise DemoError(f"job {job} is {state}\n" + "\n".join(output.splitlines()[-15:]))
        return output

    def _attempts(self, job: str) -> List[Dict[str, Any]]:
        folder = "*-disturbed-*" if self.in_s3 else ".hpk"
        ledger = events(self.driver.on("controller", f"cat /fsx/trainer/disturbed/{folder}/attempts.jsonl"))
        return [entry for entry in ledger if entry["job"] == job and entry["event"] == "attempt"]

    def _durable(self) -> int:
        if not self.in_s3:
            names = self.driver.on(
                "controller", "ls /fsx/trainer/disturbed/seq-*/MANIFEST.json 2>/dev/null", check=False
            )
            return len(names.split())
        prefix = "checkpoints/disturbed/seq-"
        client = boto3.client("s3", endpoint_url=self.driver.environment["AWS_ENDPOINT_URL"])
        found = client.list_objects_v2(Bucket=DATA_BUCKET, Prefix=prefix)
        return sum(item["Key"].endswith("/MANIFEST.json") for item in found.get("Contents", ()))


STEPS: Tuple[Tuple[str, Callable[[Demo], str]], ...] = (
    ("training environment", Demo.prepare_environment),
    ("boot the endpoint", Demo.boot_endpoint),
    ("put the text into the bucket", Demo.put_corpus),
    ("validate", Demo.validate),
    ("render", Demo.render),
    ("upload", Demo.upload),
    ("create-cluster --wait", Demo.create_cluster),
    ("validate-mounts", Demo.validate_mounts),
    ("sbatch --auto-resume=1", Demo.submit),
    ("train", Demo.train_a_while),
    ("kill a machine", Demo.kill_a_machine),
    ("node replaced", Demo.node_is_replaced),
    ("job resumed", Demo.job_resumes),
    ("job ended", Demo.job_ends),
    ("data verify-ledger", Demo.every_sample_once),
    ("undisturbed run", Demo.same_without_disturbance),
)


class Interrupt:
    """Ctrl-C, SIGTERM and a closed terminal raise KeyboardInterrupt once; what comes later cuts no clean-up short."""

    def __init__(self) -> None:
        self.came = False
        self._armed = True
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            by_nohup = number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
            if not by_nohup:
                signal.signal(number, self._handle)

    def disarm(self) -> None:
        """From here on a signal is only noted."""
        self._armed = False

    def _handle(self, *_: object) -> None:
        self.came = True
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt


def run(demo: Demo, rows: List[Tuple[str, str, float]]) -> None:
    """Run the steps in order; `rows` keeps what is done when one of them fails."""
    for number, (title, action) in enumerate(STEPS, 1):
        console.print(f"[bold]{number:2}/{len(STEPS)} {title}[/bold]")
        start = time.monotonic()
        result = action(demo)
        seconds = time.monotonic() - start
        rows.append((title, result, seconds))
        console.print(f"      {result} [dim]({seconds:.1f} s)[/dim]", soft_wrap=True)


def summary(rows: List[Tuple[str, str, float]], seconds: float) -> Table:
    table = Table(title="hyperpod-kit demo", title_justify="left")
    for column, justify in (("step", "left"), ("result", "left"), ("seconds", "right")):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for title, result, spent in rows:
        table.add_row(title, result, f"{spent:.1f}")
    table.add_section()
    table.add_row("total", "", f"{seconds:.1f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the machines up, also after a failure")
    parser.add_argument("--steps", type=int, default=90, help="training steps (default 90)")
    parser.add_argument("--root", choices=("fsx", "s3"), default="fsx", help="where the checkpoints are (default fsx)")
    parser.add_argument("--container", action="store_true", help="run the ranks in containers of enroot's, by pyxis")
    parser.add_argument("--name", default="demo", help="name of the rehearsal cluster (default demo)")
    args = parser.parse_args()
    if os.geteuid() != 0:
        console.print(
            "the demo boots machines, which needs root: run `sudo make demo`; without root, "
            "`hyperpod-kit rehearse sandbox provisioning_parameters.example.json` runs the bundle in a "
            "sandbox"
        )
        return 1
    try:
        with alone(args.name):
            return perform(args)
    except KeyboardInterrupt:
        return 130  # nothing was begun


@contextmanager
def alone(name: str) -> Iterator[None]:
    """One demo of a name at a time, of all checkouts on this machine: both would take the same machines for theirs."""
    locks = CACHE / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with open(locks / f"demo-{name}.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(
                f"another demo with the name {name} runs on this machine: this one waits for its end. "
                "With --name OTHER both run side by side",
                soft_wrap=True,
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def perform(args: argparse.Namespace) -> int:
    """Run the steps and take everything down; the exit code."""
    logs = Path(tempfile.mkdtemp(prefix="hyperpod-kit-demo-"))
    demo = Demo(Driver(args.name, logs), args.steps, in_s3=args.root == "s3", in_container=args.container)
    if demo.driver.kit("rehearse", "status", "--name", args.name, check=False):
        console.print(
            f"a rehearsal with the name {args.name} is up already: choose another name with --name, or take that one "
            f"down with: hyperpod-kit rehearse down --name {args.name}",
            soft_wrap=True,
        )
        return 1
    rows: List[Tuple[str, str, float]] = []
    start = time.monotonic()
    code = 1
    interrupt = Interrupt()
    try:
        run(demo, rows)
        code = 0
        interrupt.disarm()
    except KeyboardInterrupt:
        console.print("\n[bold]interrupted[/bold]: taking everything down")
    except Exception as err:
        interrupt.disarm()
        console.print(f"[bold red]failed[/bold red] after {time.monotonic() - start:.0f} s: {err}", soft_wrap=True)
    finally:
        demo.driver.shielded = True
        # The inner one, because printing fails where the terminal is gone, and the machines must go all the same.
        try:
            if code:
                console.print(f"logs: {logs}")
                _keep_node_logs(demo)
        finally:
            if args.keep:
                console.print(
                    f"left up: hyperpod-kit rehearse status --name {args.name}; "
                    f"take it down with: hyperpod-kit rehearse down --name {args.name}"
                )
            else:
                code = _take_down(demo) or code
    if interrupt.came:
        return 130
    if code == 0:
        if not args.keep:
            shutil.rmtree(logs, ignore_errors=True)
        console.print(summary(rows, time.monotonic() - start))
    return code


def _take_down(demo: Demo) -> int:
    start = time.monotonic()
    try:
        demo.driver.down()
    except Exception as err:
        console.print(f"[bold red]take-down failed[/bold red]: {err}")
        return 1
    seconds = time.monotonic() - start
    behind = leftovers(demo.driver.name)
    if behind:
        console.print("[bold red]left behind[/bold red]:\n" + "\n".join(sorted(behind)))
        return 1
    console.print(f"taken down, nothing left [dim]({seconds:.1f} s)[/dim]")
    return 0


def _keep_node_logs(demo: Demo) -> None:
    """Best effort: what the machines say is gone once they are down."""
    for node in ("controller", "worker-group/0", "worker-group/1", "worker-group/2"):
        try:
            text = demo.driver.kit("rehearse", "logs", "--name", demo.driver.name, node, check=False, timeout=20)
            (demo.driver.logs / f"{node.replace('/', '-')}.log").write_text(text)
        except Exception:
            continue


if __name__ == "__main__":
    sys.exit(main())
