"""States of mounts, slots and saves, actions of repairs, roles and lifecycle modes are words in one file each; others
name the member."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.checkpoint.saves.handle import ENDS, LEVELS, SaveState
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.model.states import (
    ABSENT_OR_STALE,
    MOUNTED,
    OCCUPIED,
    REPAIRS,
    RESPONSIVE,
    SERVES,
    STATES,
    LifecycleMode,
    MountState,
    RepairAction,
    Role,
)
from tests.support.packages import PACKAGES, PRODUCT, modules, relative
from tests.support.syntax import nodes, tree_of

HOME = "model/states.py"

MISTAKABLE = {"ok", "absent", "full", "unknown", "none", "wait", "restart", "kill"}
"""Words that others use for other things: looked for only where mounts are spoken of, and where one is decided on."""

ABOUT_MOUNTS = (
    "cli/nodes/mounts_command.py",
    "cli/views/fleet_",
    "model/",
    "node/commands/prolog_gate.py",
    "node/health/",
    "node/mounts/homes.py",
    "node/commands/mount_commands.py",
    "node/mounts/",
    "node/observe/",
    "node/mounts/remove_stale.py",
    "node/slurm/drain.py",
    "node/slurm/lease_keeper.py",
    "hyperpod_rehearsal/mount",
    "remote/",
)

OTHERS = {
    ("cli/nodes/mounts_command.py", "controller"): "a way to ask: --via controller",
    ("remote/reports/via.py", "controller"): "the same",
    ("job/run/beginning.py", "controller"): "what a line of the ledger is about",
    ("job/resume/patience.py", "controller"): "the same",
    ("checkpoint/repository/format/digest.py", "readonly"): "a field of Python's Py_buffer",
    ("node/mounts/bring_up.py", "restart"): "a verb of systemctl",
    ("cli/views/fleet_tables.py", "unknown"): "a step that nobody publishes",
    ("remote/reports/report.py", "none"): "NO_MOUNTS: what the table shows for a node without mounts",
}


def words(path: Path) -> Iterator[str]:
    """Every literal of the file that could be a state or an action, as the rule above says."""
    certain = {str(word) for word in (*MountState, *RepairAction, *Role, *LifecycleMode)} - MISTAKABLE
    source = path.read_text(encoding="utf-8")
    about_mounts = relative(path).startswith(ABOUT_MOUNTS)
    if not about_mounts and not any(word in source for word in certain):
        return
    tree = tree_of(path)
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and node.value in certain:
            yield str(node.value)
    if about_mounts:
        yield from mistakable_words(tree)


def mistakable_words(tree: ast.Module) -> Iterator[str]:
    """Those that stand where a state or an action is decided on."""
    for node in nodes(tree):
        decided: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            decided = [node.left, *node.comparators]
        elif isinstance(node, ast.Return) and node.value is not None:
            decided = [node.value]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node in tree.body and node.value is not None:
            decided = list(ast.walk(node.value))
        elif isinstance(node, ast.keyword) and node.arg in ("state", "action"):
            decided = [node.value]
        for one in decided:
            yield from (word for word in values(one) if word in MISTAKABLE)


def values(node: ast.AST) -> Iterator[str]:
    """The texts that an expression may have as its value, or as one of its items."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*values(node.body), *values(node.orelse))
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        for item in node.elts:
            yield from values(item)


def test_they_are_written_in_one_file() -> None:
    found = set()
    for path in modules():
        name = relative(path)
        if name != HOME:
            found |= {(name, word) for word in words(path)}
    assert found == set(OTHERS)


@pytest.mark.parametrize(
    "text",
    [
        'X = ("ok", "slow")',
        'if status.state == "ok": pass',
        'if state in ("absent", "full"): pass',
        'def f(): return "kill" if bad else "wait"',
        'def f(): return "unknown", said',
        'x = MountStatus(state="absent")',
        'x = {"hung": 1}',
        'if role == "compute": pass',
        'f("on_create")',
    ],
)
def test_the_search_finds_them(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "remote").mkdir()
    path = tmp_path / "remote/new.py"
    path.write_text(text)
    monkeypatch.setitem(PACKAGES, PRODUCT, tmp_path)
    assert list(words(path))


def test_members_are_texts_to_everybody_who_takes_texts() -> None:
    state, action = MountState.WRONG_TARGET, RepairAction.KILL
    assert (f"{state}", str(state), "{}".format(state)) == ("wrong_target",) * 3  # noqa: UP032
    assert f"{state:>13}" == " wrong_target" and ",".join([action, state]) == "kill,wrong_target"
    assert json.dumps({state: [state, action]}, sort_keys=True) == '{"wrong_target": ["wrong_target", "kill"]}'
    assert state == "wrong_target" and {"wrong_target": 1}[state] == 1 and "kill" in REPAIRS


def test_the_sets_are_about_what_a_state_means() -> None:
    """Each state is in the sets that it is in; a new one has to be placed here too."""
    named = {"serves": SERVES, "mounted": MOUNTED, "answers": RESPONSIVE, "occupied": OCCUPIED, "gone": ABSENT_OR_STALE}
    assert {str(state): [name for name, states in named.items() if state in states] for state in STATES} == {
        "ok": ["serves", "mounted", "answers"],
        "absent": ["gone"],
        "wrong_target": ["occupied"],
        "stale": ["gone"],
        "hung": [],
        "readonly": ["answers", "occupied"],
        "full": ["mounted", "answers"],
        "slow": ["serves", "mounted", "answers"],
        "unknown": ["occupied"],
    }


def test_states_of_slots_and_saves_are_written_in_one_file_each() -> None:
    """`local` is the name of a tier too; below agent/ other ends of a capture and the tags of messages are written."""
    found = set()
    for path in sorted((PACKAGES[PRODUCT] / "checkpoint").rglob("*.py")):
        name = relative(path)
        wanted = {str(state) for state in SlotState}
        if not name.startswith("checkpoint/agent/"):
            wanted |= {str(state) for state in SaveState} - {SaveState.LOCAL}
        source = path.read_text()
        home = name in ("checkpoint/saves/handle.py", "checkpoint/agent/shm/control_page.py")
        if not home and any(word in source for word in wanted):
            texts = [node.value for node in nodes(tree_of(path)) if isinstance(node, ast.Constant)]
            found |= {(name, text) for text in texts if text in wanted}
    assert found == set()


def test_a_slot_and_a_save_say_their_state_as_a_text() -> None:
    assert json.dumps({"state": SlotState.SEALED}) == '{"state": "SEALED"}' and f"{SlotState.FREE}" == "FREE"
    assert f"{SaveState.DURABLE!s:>8}" == " durable" and str(SaveState.LOCAL) == "local"
    assert set(LEVELS) | ENDS == set(SaveState) - {SaveState.COPYING} and set(LEVELS) & ENDS == {SaveState.DURABLE}


def outcome_words_compared(tree: ast.Module) -> Iterator[str]:
    """Words of outcomes where something is decided by one: compared, or in a group that is looked into."""
    words_of_outcomes = {kind.value for kind in OutcomeKind}
    for node in nodes(tree):
        if not isinstance(node, ast.Compare):
            continue
        named = {value for side in (node.left, *node.comparators) for value in values(side)}
        if any(isinstance(side, (ast.Attribute, ast.Subscript, ast.Call)) for side in (node.left, *node.comparators)):
            yield from named & words_of_outcomes


OF_OTHER_THINGS = {
    ("job/status/attempt_table.py", "storage"): "the tier that ranks restored from",
}
"""Words of outcomes that are compared with something else."""


def test_nothing_is_decided_by_the_word_of_an_outcome() -> None:
    """A new class is a member of the enum with its properties, and nothing else in the product knows its word."""
    compared = set()
    for path in modules():
        name = relative(path)
        if name.startswith(("job/", "storage/plan/")) and name != "job/decide/outcome_kind.py":
            compared |= {(name, word) for word in outcome_words_compared(tree_of(path))}
    assert compared == set(OF_OTHER_THINGS)


def test_a_word_of_an_outcome_that_decides_is_seen() -> None:
    tree = ast.parse('if attempt.kind == "crash" or row["class"] in ("stall", "x"): pass')
    assert set(outcome_words_compared(tree)) == {"crash", "stall"}
