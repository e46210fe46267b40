"""What the guard puts right by itself: our lines, our plugin, and a drain that Slurm gives for what is over.

Each is tried at once, then later and later while it does not last: something that rewrites slurm.conf again and again
is reported, never raced. Nothing here stops slurmctld, moves its state or touches what a person has said of a node.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import AbstractSet, Any, Dict, List, Mapping, Optional, Tuple, Union

from hyperpod_kit import audit
from hyperpod_kit.errors import HyperpodKitError, NodeError, RunError
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.slurm import accounting_lines, drain, plugin
from hyperpod_kit.node.slurm.cluster_id import DEFAULT_STATE
from hyperpod_kit.node.slurm.guard.collect import STATE, ControllerFacts, PlaneFacts
from hyperpod_kit.node.slurm.guard.judge import settings_not_in_force
from hyperpod_kit.node.slurm.hooks import kit_block_lines, parse_slurm_conf_settings, with_kit_block
from hyperpod_kit.slurm import running_config
from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.slurm.node_reasons import DUPLICATE_JOB, finding_for_node_state_or_none
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json

PAUSES = BackOff(20.0, 3600.0)
"""Between two tries of the same thing."""

REMEMBERED = 600.0
"""Seconds for which a thing that was put right, and has stayed so, is still told."""

FOUGHT = 3
"""Times in a row from which on somebody is taken to undo what the guard does."""

RESTS_FOR = 30.0
"""Seconds that a node has been drained before the guard undrains it: slurmctld may still be at that job."""

ASKED_BY = "the guard of Slurm"

RESTORED, BUILT, RELEASED = "restored", "built", "released"
CODES = {RESTORED: "put-back", BUILT: "plugin-built", RELEASED: "undrained"}


@dataclass(frozen=True)
class Tries:
    """How often one thing was done, or failed, since it last held. at: when last, Unix seconds; words: what was done;
    error: why the last try failed, "" when it did not."""

    count: int = 0
    at: float = 0.0
    words: str = ""
    error: str = ""

    @classmethod
    def parse_or_empty(cls, raw: Any) -> Tries:
        """Make Tries of a stored note; anything else counts as no try."""
        try:
            return dataclass_from_json(cls, raw, ignore_unknown=True)
        except ValueError:
            return cls()

    def is_next_try_due(self, now: float) -> bool:
        return self.count == 0 or not 0 <= now - self.at < PAUSES.pause_seconds(self.count)

    def after_try(self, now: float, action: str, error: str = "") -> Tries:
        # Failures do not count as something that is undone: after them a success is the first.
        before = 0
        if bool(error) == bool(self.error):
            before = self.count
        return Tries(before + 1, now, action, error)

    def after_nothing_to_do(self, now: float) -> Tries:
        """Return the tries after a check that found nothing to do: reset once it has held for as long as the next
        pause is, at once where it was not the guard that put it right."""
        is_over = now - self.at >= max(REMEMBERED, PAUSES.pause_seconds(self.count))
        if is_over or self.error:
            return Tries()
        return self


@dataclass(frozen=True)
class Mended:
    """notes: for the next look; done: lines for a person, of what was done now."""

    notes: Mapping[str, Tries] = field(default_factory=dict)
    done: Tuple[str, ...] = ()

    def without_notes(self, names: AbstractSet[str]) -> Mended:
        """The same, but for what these notes are about."""
        return replace(self, notes={name: tries for name, tries in self.notes.items() if name not in names})

    def to_dict(self) -> Dict[str, Any]:
        return {name: asdict(tries) for name, tries in self.notes.items() if tries.count}


def mend_slurm_where_due(node: Node, facts: PlaneFacts, earlier_notes: Mapping[str, Any]) -> Mended:
    """Put right what is due: the kit's lines, the plugin, a drain that is over. `noted`: the notes of the
    last round."""
    done: List[str] = []
    notes = {
        RESTORED: _restore_config_if_due(node, facts, Tries.parse_or_empty(earlier_notes.get(RESTORED)), done),
        BUILT: _build_plugin_if_due(node, facts, Tries.parse_or_empty(earlier_notes.get(BUILT)), done),
        RELEASED: _undrain_duplicate_job_if_due(node, facts, Tries.parse_or_empty(earlier_notes.get(RELEASED)), done),
    }
    return Mended(notes, tuple(done))


def _restore_config_if_due(node: Node, facts: PlaneFacts, tries: Tries, done: List[str]) -> Tries:
    now = node.clock.wall()
    if facts.controller is None or facts.controller.config is None:
        return tries
    planned = plan_restoration(facts.controller)
    if planned.refusal:
        return replace(tries, error=planned.refusal)
    if not planned.has_anything_to_restore:
        return tries.after_nothing_to_do(now)
    if not tries.is_next_try_due(now):
        return tries
    texts = facts.controller.texts
    changed = [path for path in planned.files if read_text(path) != texts.get(path)]
    if changed:
        # Somebody is at work there in this very moment: his text is looked at first.
        return tries
    if planned.files:
        action = f"the kit's lines into {', '.join(planned.files)}"
    else:
        action = "scontrol reconfigure"
    try:
        for path, text in planned.files.items():
            write_if_different(path, text)
        if any(path.startswith(node.paths.unit("")) for path in planned.files):
            systemd.daemon_reload(node)
        node.runner.run([drain.slurm_program_path_or_name(node, "scontrol"), "reconfigure"], timeout=60)
    except (OSError, RunError) as err:
        error = _error_text(err)
        done.append(f"{action}: failed: {error}")
        return tries.after_try(now, action, error)
    audit.record_root_action_in_journal("restored", "Slurm's configuration", action, asked_by=ASKED_BY)
    done.append(f"put back: {action}")
    return tries.after_try(now, action)


def _error_text(err: Union[OSError, HyperpodKitError]) -> str:
    if isinstance(err, HyperpodKitError):
        return err.message
    return str(err)


def _build_plugin_if_due(node: Node, facts: PlaneFacts, tries: Tries, done: List[str]) -> Tries:
    now = node.clock.wall()
    if not facts.plugin.error:
        if facts.plugin.offers:
            return tries.after_nothing_to_do(now)
        return tries
    if facts.unbuildable:
        return tries
    if not tries.is_next_try_due(now):
        return tries
    action = f"the plugin, for the Slurm of this node ({facts.installed or 'of unknown version'})"
    try:
        if not plugin.build_if_outdated(node):
            headers = (
                f"it is built with the headers in {plugin.headers_directory(node)}, but this Slurm is {facts.installed}"
            )
            return tries.after_try(now, action, headers)
    except (NodeError, RunError, OSError) as err:
        error = _error_text(err)
        done.append(f"cannot build {action}: {error}")
        return tries.after_try(now, action, error)
    audit.record_root_action_in_journal("built", plugin.STEP.name, facts.plugin.error, asked_by=ASKED_BY)
    done.append(f"built {action}: {facts.plugin.error}")
    return tries.after_try(now, action)


def _undrain_duplicate_job_if_due(node: Node, facts: PlaneFacts, tries: Tries, done: List[str]) -> Tries:
    """Undrain a node that Slurm has drained for a job that it no longer has; nobody else ever takes that back."""
    now = node.clock.wall()
    if facts.slurm_node is None:
        return tries
    finding = finding_for_node_state_or_none(facts.node, facts.slurm_node.state, facts.slurm_node.reason)
    if finding is None or finding.code != DUPLICATE_JOB:
        return tries.after_nothing_to_do(now)
    rests = facts.slurm_node.reason_at and now - facts.slurm_node.reason_at >= RESTS_FOR
    if not tries.is_next_try_due(now) or not rests or not facts.slurm_node.draining or facts.daemon_runs is False:
        return tries
    action = f"node {facts.node}, which has no jobs left ({facts.slurm_node.reason})"
    try:
        if _has_jobs_on_node(node):
            return tries
        drain.update_local_node(node, "state=undrain")
    except (RunError, OSError) as err:
        return tries.after_try(now, action, _error_text(err))
    audit.record_root_action_in_journal("undrained", f"node {facts.node}", facts.slurm_node.reason, asked_by=ASKED_BY)
    done.append(f"undrained {action}")
    return tries.after_try(now, action)


def _has_jobs_on_node(node: Node) -> bool:
    """Whether a step of any job lives here, or slurmctld has a job here. Raises RunError, OSError."""
    from hyperpod_kit.node.memory import orphaned_snapshots  # seldom needed, and dear to import

    if orphaned_snapshots.jobs_with_stepd(node.paths.proc):
        return True
    argv = [
        drain.slurm_program_path_or_name(node, "squeue"),
        "--noheader",
        "--all",
        f"--nodelist={node.facts.node}",
        "--format=%i",
    ]
    done = node.runner.run([*argv, "--states=R,CG,S,ST,SI"], timeout=drain.SECONDS)
    return bool(done.stdout.strip())


def findings_about_mending(mended: Mended, now: float) -> List[SlurmFinding]:
    """Return the findings about what the guard did. Pure."""
    reports: List[SlurmFinding] = []
    for name, tries in mended.notes.items():
        if tries.error:
            reports.append(SlurmFinding(f"not-{CODES[name]}", f"the guard cannot repair this: {tries.error}"))
        elif tries.count >= FOUGHT:
            reports.append(
                SlurmFinding(
                    f"again-{CODES[name]}",
                    f"the guard has done this {tries.count} times, the last time {now - tries.at:.0f} s ago, but "
                    f"something undoes it: {tries.words}",
                    "hyperpod-kit node actions; find the program that rewrites it: an agent, or configuration "
                    "management",
                )
            )
        elif tries.count:
            reports.append(
                SlurmFinding(CODES[name], f"repaired {now - tries.at:.0f} s ago: {tries.words}", fault=False)
            )
    return reports


# What of our lines can be put back into slurm.conf and plugstack.conf while slurmctld runs. Pure.
#
# `scontrol reconfigure` has slurmctld take the file as a whole. Where that would move its state, or needs slurmctld
# to be started anew, nothing is put back: `node apply` does that, with slurmctld stopped.

AT_START = (STATE, *accounting_lines.RESTARTED_FOR)
"""Settings that the guard leaves as the running slurmctld has them."""


@dataclass(frozen=True)
class Restoration:
    """files: path -> text to be written; reconfigure: whether slurmctld is to take them; refusal: why nothing is to be
    done although something is not as it should be, "" otherwise."""

    files: Mapping[str, str] = field(default_factory=dict)
    reconfigure: bool = False
    refusal: str = ""

    @property
    def has_anything_to_restore(self) -> bool:
        return bool(self.files) or self.reconfigure


def plan_restoration(facts: ControllerFacts) -> Restoration:
    """Return which of the kit's lines can be put back now, or why none."""
    if facts.problem or facts.config is None or facts.acting:
        return Restoration()
    conf = facts.texts.get(facts.slurm_conf)
    location = facts.config.get(STATE, "")
    if conf is None or not location:
        return Restoration(refusal="slurmctld does not report where its state is")
    text = _slurm_conf_without_start_only_changes(conf, facts)
    if not facts.has_state_in(parse_slurm_conf_settings(text).get(STATE, DEFAULT_STATE)):
        return Restoration(
            refusal=f"slurm.conf has the state in {parse_slurm_conf_settings(text).get(STATE, DEFAULT_STATE)} and "
            f"slurmctld has it in {location}: restoring anything would move it"
        )
    expected = {**facts.expected_texts, facts.slurm_conf: text}
    files: Dict[str, str] = {path: new for path, new in expected.items() if facts.texts.get(path) != new}
    idle = [key.lower() for key, _ in settings_not_in_force(text, facts.config)]
    return Restoration(files, bool(files) or any(key not in AT_START for key in idle))


def _slurm_conf_without_start_only_changes(conf: str, facts: ControllerFacts) -> str:
    """Return slurm.conf with the kit's block, but for lines that take effect only when slurmctld starts and
    are not in effect: those stay as they are in the file."""
    present = {_setting_key(line): line for line in kit_block_lines(conf)}
    lines: List[str] = []
    for line in kit_block_lines(facts.expected_texts[facts.slurm_conf]):
        key, value = _setting_key(line), line.partition("=")[2].strip()
        kept: Optional[str] = line
        if key in AT_START and not _is_in_effect(facts, key, value):
            kept = present.get(key)
        if kept is not None:
            lines.append(kept)
    return with_kit_block(conf, lines)


def _is_in_effect(facts: ControllerFacts, key: str, value: str) -> bool:
    if key == STATE:
        return facts.has_state_in(value)
    return running_config.is_in_force(facts.config or {}, key, value) is True


def _setting_key(line: str) -> str:
    if line.lstrip().startswith("#"):
        return ""
    return line.partition("=")[0].strip().lower()
