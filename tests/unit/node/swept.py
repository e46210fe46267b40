"""One creation, killed before its n-th effect: a forked process, real files, and recorder.py's programs called in it.

An effect is what another process or the next run could see: a file opened for writing, renamed, linked or removed, a
directory made, a command begun and a command ended; not one that only asks.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.errors import HyperpodKitError, RunError
from hyperpod_kit.node import cli
from hyperpod_kit.node.commands import mount_commands
from hyperpod_kit.node.creation.apply import apply, preview
from hyperpod_kit.node.creation.plan import plan
from hyperpod_kit.node.creation.steps import STEPS
from hyperpod_kit.node.machine.context import Node, open_node
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.node.observe import check as look
from hyperpod_kit.node.observe.probe import Probed
from hyperpod_kit.run import Completed

EFFECTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
ASKING = re.compile(r"getent |systemctl (is-|show)|scontrol (ping|--)|journalctl ")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Effects:
    """Counts the effects of this process and ends it before number `kill_at`."""

    def __init__(self, kill_at: Optional[int]) -> None:
        self.kill_at, self.count, self.paused, self.process = kill_at, 0, 0, os.getpid()
        sys.addaudithook(self.heard)

    def heard(self, event: str, args: Tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if (flags or 0) & WRITING and path != "/dev/null" and "/locks/" not in str(path):
                self.happens()
        elif event == "os.mkdir":
            if not os.path.isdir(args[0]):
                self.happens()
        elif event in EFFECTS:
            self.happens()

    def happens(self) -> None:
        if self.paused or os.getpid() != self.process:
            return
        if self.count == self.kill_at:
            os.kill(self.process, signal.SIGKILL)
        self.count += 1

    @contextlib.contextmanager
    def not_ours(self) -> Iterator[None]:
        """What another process does, which no signal of ours would end."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1


class Programs:
    """A Runner whose programs are recorder.py's."""

    target = ""

    def __init__(self, root: Path, effects: Effects) -> None:
        os.environ["HPK_ROOT"] = str(root)
        spec = importlib.util.spec_from_file_location("swept_recorder", Path(__file__).with_name("recorder.py"))
        assert spec is not None and spec.loader is not None
        self.recorder: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.recorder)
        vars(self.recorder)["program"] = self.our_own
        self.effects = effects

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        asks = ASKING.match(" ".join([os.path.basename(argv[0]), *argv[1:]]))
        if not asks:
            self.effects.happens()
        before = self.recorder.NAME, self.recorder.ARGS
        said = io.StringIO()
        with self.effects.not_ours(), contextlib.redirect_stdout(said):
            code = self.recorder.call(os.path.basename(argv[0]), list(argv[1:]))
        self.recorder.NAME, self.recorder.ARGS = before
        if not asks:
            self.effects.happens()
        if check and code:
            raise RunError(argv, code)
        return Completed(tuple(argv), code, said.getvalue(), "")

    def our_own(self, line: str) -> int:
        """A line of a unit that starts our program: a process of systemd's, not of the creation that is killed."""
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                return cli.main(shlex.split(line)[2:])
            except HyperpodKitError:
                return 1


def create(root: Path, address: str, kill_at: Optional[int] = None) -> Optional[Tuple[int, int]]:
    """Run the creation in a process of its own; (how many effects it had, `changed`), None when it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.environ["HPK_NODE_ADDRESS"] = address
            os.environ.pop("SAGEMAKER_RESOURCE_CONFIG_PATH", None)
            os.fsync = lambda fd: None  # a killed process is no lost power
            vars(look)["probe_all"] = answered
            effects = Effects(kill_at)
            with effects.not_ours():
                programs = Programs(root, effects)
            node = open_node(gather=True, paths=NodePaths(str(root)), runner=programs)
            swept = Node(node.paths, node.config, node.facts, programs, node.clock)
            vars(mount_commands)["open_node"] = lambda: swept
            planned = plan(STEPS, node.config, node.facts.role, node.facts.group, "on_create")
            with effects.not_ours():
                foreseen = [step["step"] for step in preview(node, planned) if step["would"]]
            status = apply(node, planned, "on_create", lambda line: None)
            bad = [step for step in status["steps"] if step["status"] == "failed"]
            done = [step["step"] for step in status["steps"] if step["status"] == "changed"]
            if foreseen != done:
                status["ok"], bad = False, [f"--dry-run said that {foreseen} would change, and {done} did"]
            os.write(writer, json.dumps([status["ok"], effects.count, status["changed"], bad]).encode())
        except BaseException:
            os.write(writer, json.dumps([False, -1, 0, traceback.format_exc()]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        assert os.WTERMSIG(ended) == signal.SIGKILL and not text
        return None
    ok, count, changed, bad = json.loads(text)
    assert ok, bad
    return count, changed


def answered(targets: Sequence[Any], deadline: float, name: str) -> List[Probed]:
    """Stands in for the probe of mounts: it has tests of its own, and its processes are most of a run here."""
    return [Probed("answered", size=1, available=1) for _ in targets]


VOLATILE = ("checked_at", "finished_at", "latency_ms", "mount_id", "device", "ts", "duration_ms", "steps", "changed")


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items() if key not in VOLATILE}
    return [_plain(value) for value in data] if isinstance(data, list) else data


def end_state(root: Path) -> Dict[str, Any]:
    """All that creation leaves behind, without times and numbers that the kernel gives."""
    state: Dict[str, Any] = {}
    for top in ("etc", "opt/slurm/etc", "opt/hyperpod-kit/spank", "var/lib", "run/hyperpod-kit"):
        for path in sorted((root / top).rglob("*")):
            if path.is_file() and "locks" not in path.parts:
                text = path.read_text()
                state[str(path.relative_to(root))] = _plain(json.loads(text)) if path.suffix == ".json" else text
    for name in ("enabled", "running", "loaded", "reconfigured"):
        path = root / "recorder" / name
        data = ast.literal_eval(path.read_text()) if path.exists() else {}
        state[name] = sorted(data) if name != "loaded" else data
    mounts: List[str] = (root / "proc/self/mountinfo").read_text().splitlines()
    state["mounts"] = sorted(re.sub(r"^\d+ 1 0:\d+ ", "", line) for line in mounts)
    return state
