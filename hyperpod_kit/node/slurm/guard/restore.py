"""What of our lines can be put back into slurm.conf and plugstack.conf while slurmctld runs. Pure.

`scontrol reconfigure` has slurmctld take the file as a whole. Where that would move its state, or needs slurmctld to be
started anew, nothing is put back: `node apply` does that, with slurmctld stopped.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional

from hyperpod_kit.node.slurm import accounting_lines
from hyperpod_kit.node.slurm.guard.collect import STATE, ControllerFacts
from hyperpod_kit.node.slurm.guard.judge import settings_not_in_force
from hyperpod_kit.node.slurm.hooks import kit_block_lines, parse_slurm_conf_settings, with_kit_block
from hyperpod_kit.slurm import running_config

AT_START = (STATE, *accounting_lines.RESTARTED_FOR)
"""Settings that the guard leaves as the running slurmctld has them."""

DEFAULT_STATE = "/var/spool"
"""StateSaveLocation where slurm.conf has none."""


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
        return Restoration(refusal="slurmctld does not say where its state is")
    text = _slurm_conf_without_start_only_changes(conf, facts)
    if not facts.has_state_in(parse_slurm_conf_settings(text).get(STATE, DEFAULT_STATE)):
        return Restoration(
            refusal=f"slurm.conf has the state in {parse_slurm_conf_settings(text).get(STATE, DEFAULT_STATE)} and "
            "slurmctld has it in "
            f"{location}: to put anything back would move it"
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
