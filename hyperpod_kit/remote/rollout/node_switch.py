"""Switch nodes to another bundle: a unit of systemd on each node does it, and is asked until it has ended.

The unit fetches the bundle unless the node has it whole, and runs the bundle's own entry script, which verifies every
byte, installs it beside the old one, switches `current` by a rename and runs `node apply`, as at a creation. When that
fails, the unit runs the entry script of the bundle before. So a node ends with one bundle or the other, whatever
becomes of the connection or of the admin's machine.

The script is sent, so that a node of any version can be switched; it fits into one line of an SSM session.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any, Callable, Mapping, NamedTuple, Optional

from hyperpod_kit.environment import HPK_MODE
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.remote.connect.fan_out import query_all
from hyperpod_kit.remote.draining.slurm_runner import SlurmRunner
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Runner
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import clean_one_line

UNIT = "hyperpod-kit-rollout"

SECONDS = 4500.0
"""Within which a node is switched or put back: twice what the entry script may take, and the download."""

INTERVAL = 5.0

SILENT_LOOKS = 24
"""Looks in a row that a node may leave unanswered: it may be busy, or its sshd be restarted."""

STARTS = 2
"""How often the unit is started on a node: a reboot ends it before its end."""

SCRIPT = r"""umask 022; H=/opt/hyperpod-kit V=/var/lib/hyperpod-kit L=/var/log/provision/provisioning.log
run=$1 id=$2 sums=$3 uri=$4 D=$V/rollout P=$H/current/bin/hyperpod-kit
mkdir -p $D /var/log/provision; touch $L; old=$(readlink $H/current) n=$(wc -l <$L)
note() {
printf "{\"run\": \"$run\", \"bundle\": \"$id\", \"from\": \"$old\", \"state\": \"$1\"}\n%s\n" "$2" >$D/note
mv $D/note $V/rollout.json
}
is() { case $(sha256sum <$1/SHA256SUMS) in $sums*) (cd $1; $2 SHA256SUMS | sha256sum -c --status);; *) false; esac; }
enter() {
m=$(sed -n "s/.*\"lifecycle_mode\": \"\(.*\)\".*/\1/p" $1/node_config.json)
MODE=$m timeout -k 9 1900 bash $1/on_create.sh
}
note running; S=$H/$id
if ! is $S cat; then
S=$D/$id; rm -rf $S; mkdir $S
if $P node fetch -h >/dev/null; then set $P node fetch "$uri" $S
else set aws s3 cp --recursive --only-show-errors "$uri" $S; fi
w=$(timeout 600 "$@" 2>&1) || { note kept "$w"; exit 1; }
is $S "grep -e on_create.sh -e node_config.json" || { note kept "what lies at $uri is not bundle $id"; exit 1; }
fi
if enter $S; then note done; rm -rf $D; exit; fi
w=$(tail -n +$((n+1)) $L | grep -m 1 "\"status\": \"failed\"")
if [ "$(readlink $H/current)" = "$old" ]; then note kept "$w"
elif enter $H/$old; then note back "$w"
else note broken "$w"; fi; exit 1
""".replace("MODE=", f"{HPK_MODE}=")
"""Arguments: a name for this run, the bundle, how the SHA-256 of its SHA256SUMS begins, where it lies in S3. A dollar
before a brace or another dollar would be systemd's."""

START = ("systemd-run", "-q", "--collect", f"--unit={UNIT}", "-pEnvironmentFile=-/etc/environment", "bash", "-c")

LOOK = (
    "echo == looked; readlink /opt/hyperpod-kit/current || echo; "
    f"systemctl is-active {UNIT}; cat /var/lib/hyperpod-kit/rollout.json; :"
)


class SwitchState(Enum):
    """How the switch of a node ended. KEPT: it never left the bundle that it had; BACK: it was put back to it; BROKEN:
    that failed, too; UNKNOWN: it does not say."""

    DONE = "done"
    KEPT = "kept"
    BACK = "back"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class TargetBundle(NamedTuple):
    """A bundle that a node is to have. `sums_sha256`: how the SHA-256 of its SHA256SUMS begins; `uri`: of its
    prefix in S3."""

    bundle_id: str
    sums_sha256: str
    uri: str


@dataclass(frozen=True)
class NodeSwitch:
    """What became of one node. `step`: the step that failed, `error`: why, `hint`: what to do; "" where none did."""

    target: NodeTarget
    state: SwitchState
    step: str = ""
    error: str = ""
    hint: str = ""

    @property
    def runs_a_whole_bundle(self) -> bool:
        """Whether jobs may start there: the node has the new bundle, or the one that it had."""
        return self.state in (SwitchState.DONE, SwitchState.KEPT, SwitchState.BACK)


@dataclass(frozen=True)
class SwitchPace:
    """How long a node may take, how often it is looked at, and by which clock."""

    seconds: float = SECONDS
    interval: float = INTERVAL
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class _Look:
    """What a node says: the bundle that it runs, whether the unit is at work, and the note of its last run."""

    current: str
    is_active: bool
    note: Mapping[str, Any]
    reason: str


class NodeSwitcher:
    """Switches nodes, each once: called again for the same nodes, it goes on waiting for them."""

    def __init__(self, connect: Callable[[NodeTarget], Runner], pace: Optional[SwitchPace] = None) -> None:
        self._connect = connect
        self._pace = pace or SwitchPace()
        self._run = secrets.token_hex(4)

    def switch_all(
        self, bundles: Mapping[NodeTarget, TargetBundle], progress: Callable[[NodeSwitch], None]
    ) -> list[NodeSwitch]:
        """Switch these nodes at once, and return what became of each, in their order."""
        return query_all(list(bundles), lambda target: self._switch_node(target, bundles[target]), progress)

    def _switch_node(self, target: NodeTarget, bundle: TargetBundle) -> NodeSwitch:
        end = self._pace.clock() + self._pace.seconds
        starts = silent = 0
        reason = ""
        while self._pace.clock() < end:
            try:
                look = self._look(target)
                outcome = _outcome_or_none(target, look, self._run, bundle)
                if outcome is not None:
                    return outcome
                if not look.is_active:
                    if starts == STARTS:
                        break
                    starts += 1
                    reason = self._start_or_reason(target, bundle)
                silent = 0
            except HyperpodKitError as err:
                silent += 1
                if silent == SILENT_LOOKS:
                    return NodeSwitch(target, SwitchState.UNKNOWN, "look", err.message, err.hint or "")
            except Exception as err:  # whatever one node says, the others are asked
                return NodeSwitch(target, SwitchState.UNKNOWN, "look", f"{type(err).__name__}: {clean_one_line(err)}")
            self._pace.sleep(self._pace.interval)
        if reason:
            hint = "the user that logs in must be root, or become root by sudo without a password"
            return NodeSwitch(target, SwitchState.KEPT, "start", reason, hint)
        error = f"its unit {UNIT} did not end within {self._pace.seconds:g} s, or ended without a result"
        return NodeSwitch(target, SwitchState.UNKNOWN, "look", error, f"on it: journalctl -u {UNIT}")

    def _look(self, target: NodeTarget) -> _Look:
        done = SlurmRunner(self._connect(target)).run(["sh", "-c", LOOK], timeout=60.0, check=False)
        return parse_look(done.stdout)

    def _start_or_reason(self, target: NodeTarget, bundle: TargetBundle) -> str:
        """Start the unit on a node; return why it was not started, "" when it was."""
        argv = [*START, SCRIPT, "bash", self._run, *bundle]
        done = SlurmRunner(self._connect(target)).run(argv, timeout=60.0, check=False)
        if done.returncode == 0:
            return ""
        return f"systemd-run exited {done.returncode}: {last_line_or_nothing_word(done.stderr)}"


def parse_look(text: str) -> _Look:
    """Parse what LOOK printed, after any login banner. Raises ValueError."""
    match = re.search(r"^== looked\n(.*)\n([a-z-]+)\n?(.*)\n?((?:.*\n?)*)", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"its answer does not describe a bundle: {last_line_or_nothing_word(text)}")
    current, unit, note, reason = match.groups()
    is_active = unit in ("active", "activating", "deactivating")
    return _Look(clean_one_line(current), is_active, parse_json_object(note or "{}"), reason)


def _outcome_or_none(target: NodeTarget, look: _Look, run: str, bundle: TargetBundle) -> Optional[NodeSwitch]:
    """Return what this run has made of a node; None while it has not ended, or has not begun."""
    state = look.note.get("state")
    if look.is_active or (look.note.get("run"), look.note.get("bundle")) != (run, bundle.bundle_id):
        return None
    if state == "done" and look.current == bundle.bundle_id:
        return NodeSwitch(target, SwitchState.DONE)
    if state in ("kept", "back", "broken"):
        step, error, hint = _failure(look.reason)
        return NodeSwitch(target, SwitchState(state), step, error, hint)
    return None


def _failure(reason: str) -> tuple[str, str, str]:
    """Return (step, error, hint) of a line of provisioning.log, or of what a download said."""
    try:
        record = parse_json_object(reason)
    except ValueError:
        return "fetch", last_line_or_nothing_word(reason), ""
    return (
        clean_one_line(record.get("step") or "install"),
        clean_one_line(record.get("error") or "no message"),
        clean_one_line(record.get("hint") or ""),
    )
