"""Names of 0.1.0 in `hyperpod_kit.checkpoint`, which work for one more release and warn."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Tuple

import pytest

import hyperpod_kit.checkpoint as public
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from tests.unit.checkpoint.small_checkpoint import put_checkpoint

CLASSES = (
    "CheckpointFacts",
    "Handle",
    "LoadedWeights",
    "CheckpointInfo",
    "RestoreProgress",
    "Restored",
)
FUNCTIONS: Dict[str, Tuple[str, ...]] = {
    "Manager.restore": ("attempt",),
    "Manager.inspect": ("attempt",),
    "load_state": ("attempt",),
    "load_weights": ("attempt",),
}


def deprecations(caught: Iterable[warnings.WarningMessage]) -> List[warnings.WarningMessage]:
    """Only these: another thread, or the collector of garbage, may warn of something else at any moment."""
    return [warning for warning in caught if warning.category is DeprecationWarning]


def resolve(name: str) -> Any:
    place: Any = public
    for part in name.split("."):
        place = getattr(place, part)
    return place


@pytest.mark.parametrize(
    "old, new", [("Peeked", "CheckpointInfo"), ("attempts", "list_checkpoints"), ("newest_whole", "newest_complete")]
)
def test_a_name_of_the_package_is_found_under_its_old_name(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"checkpoint.{old} is now called {new}") as caught:
        assert getattr(public, old) is getattr(public, new)
    assert deprecations(caught)[0].filename == __file__
    assert old not in public.__all__ and old not in dir(public)


@pytest.mark.parametrize("name", CLASSES)
def test_the_name_of_a_checkpoint_is_read_as_attempt(name: str) -> None:
    kind = resolve(name)
    instance = object.__new__(kind) if not issubclass(kind, tuple) else kind("seq-1", 2, 3)
    if not issubclass(kind, tuple):
        object.__setattr__(instance, "checkpoint_id", "seq-1")
    with pytest.warns(DeprecationWarning, match=f"{name}.attempt is now called checkpoint_id") as caught:
        assert instance.attempt == "seq-1"
    assert deprecations(caught)[0].filename == __file__


def test_what_a_root_holds_is_read_as_attempt(tmp_path: Path) -> None:
    name = put_checkpoint(PosixStore(str(tmp_path)), 1)
    for entry in (public.list_checkpoints(str(tmp_path))[0], public.newest_valid(str(tmp_path))):
        with pytest.warns(DeprecationWarning):
            assert getattr(entry, "attempt") == name  # noqa: B009


def test_progress_of_a_restore_is_read_under_its_old_names() -> None:
    progress: Any = public.RestoreProgress("seq-1", 2, 3)
    with pytest.warns(DeprecationWarning):
        assert (progress.done, progress.whole) == (2, 3)


def test_facts_of_a_policy_are_made_with_attempt() -> None:
    make: Callable[..., Any] = public.CheckpointFacts
    with pytest.warns(DeprecationWarning, match="attempt=") as caught:
        facts = make(attempt="seq-1", order=(1, 1, ""), step=7)
    assert facts == public.CheckpointFacts("seq-1", (1, 1, ""), 7) and deprecations(caught)[0].filename == __file__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_taken_under_their_old_names(name: str, tmp_path: Path) -> None:
    """The old name reaches the function as the new one does: both end in the same error."""
    function = resolve(name)
    positional = (object(),) * (1 if name == "Manager.inspect" else 2)
    errors = []
    for arguments in ({"checkpoint_id": "seq-1"}, {"attempt": "seq-1"}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DeprecationWarning)
            with pytest.raises(Exception) as raised:
                function(*positional, **arguments)
        errors.append((raised.type, str(raised.value).split(" at 0x")[0]))
        assert len(deprecations(caught)) == ("attempt" in arguments)
    assert errors[0] == errors[1]
    with pytest.raises(TypeError, match="attempt=, which is now checkpoint_id="):
        function(*positional, attempt="a", checkpoint_id="b")


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("Manager", "peek", "inspect"),
        ("Handle", "become", "advance"),
        ("State", "forget", "clear_cache"),
        ("State", "wants", "required_names"),
    ],
)
def test_a_method_is_called_under_its_old_name(name: str, old: str, new: str) -> None:
    instance: Any = object.__new__(resolve(name))
    with pytest.warns(DeprecationWarning, match=f"{name}.{old} is now called {new}"):
        assert getattr(instance, old).__func__ is getattr(resolve(name), new)
