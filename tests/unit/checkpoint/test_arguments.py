"""Steps and metrics of any number type; what is none is refused before anything has changed."""

from __future__ import annotations

import decimal
import enum
import fractions
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from hyperpod_kit.checkpoint import Best, Latest, Manager, State  # noqa: E402
from hyperpod_kit.checkpoint.commands import cli  # noqa: E402
from hyperpod_kit.checkpoint.repository import policy  # noqa: E402
from hyperpod_kit.checkpoint.repository.read import verify  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from hyperpod_kit.checkpoint.saves.arguments import checked_step, validate_and_encode_metrics  # noqa: E402
from hyperpod_kit.errors import RunIsOwned  # noqa: E402


class Step(enum.IntEnum):
    THREE = 3


@pytest.mark.parametrize(
    "step",
    [
        3,
        numpy.int64(3),
        numpy.uint8(3),
        numpy.array(3),
        torch.tensor(3),
        torch.tensor(3, dtype=torch.uint8),
        Step.THREE,
    ],
    ids=repr,
)
def test_every_integer_is_a_step(step: Any) -> None:
    assert checked_step(step) == 3 and type(checked_step(step)) is int


@pytest.mark.parametrize(
    "step",
    [3.0, 1.5, "7", None, True, numpy.float32(3), numpy.bool_(True), torch.tensor(3.0), torch.tensor([1, 2]), math.nan],
    ids=repr,
)
def test_nothing_else_is(step: Any) -> None:
    with pytest.raises(TypeError, match=r"step is .*, expected an integer"):
        checked_step(step)
    with pytest.raises(ValueError, match="step is -1, expected 0 or more"):
        checked_step(-1)


def test_every_real_number_is_a_metric() -> None:
    assert validate_and_encode_metrics(
        {
            "a": 1,
            "b": numpy.float32(0.5),
            "c": torch.tensor(2.0),
            "d": decimal.Decimal("0.25"),
            "e": fractions.Fraction(1, 8),
            "f": math.nan,
            "g": numpy.inf,
            "h": -(10**400),
            "i": True,
            "j": torch.tensor(1.0, requires_grad=True),
        }
    ) == {"a": 1.0, "b": 0.5, "c": 2.0, "d": 0.25, "e": 0.125, "f": "nan", "g": "inf", "h": "-inf", "i": 1.0, "j": 1.0}
    for bad in ({"a": "x"}, {"a": "7"}, {"a": None}, {"a": 1j}, {"a": torch.ones(2)}, {"a": [1]}):
        with pytest.raises(TypeError, match=r"metric 'a' is .*, expected a number"):
            validate_and_encode_metrics(bad)
    with pytest.raises(TypeError, match="name of a metric is 7"):
        validate_and_encode_metrics({7: 1.0})  # type: ignore[dict-item]


def test_nan_is_kept_and_the_worst(shm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(tmp_path / "run")
    state = State(torch.nn.Linear(4, 4))
    values = [0.5, math.nan, math.inf, -math.inf]
    with Manager(root, keep=Latest(4) | Best("loss")) as manager:
        manager.restore(state)
        for step, value in enumerate(values):
            assert manager.save(step, state, metrics={"loss": value}).wait("durable", 10)
    found = [
        verify.read_manifest(root, entry.checkpoint_id).metrics["loss"] for entry in catalog.list_checkpoints(root)
    ][::-1]
    assert repr(found) == repr(values)
    facts = [policy.CheckpointFacts(str(n), (0, n, ""), n, metrics={"loss": value}) for n, value in enumerate(found)][
        ::-1
    ]
    assert [Best("loss", n).keeps(facts) for n in (1, 2, 3)] == [{"3"}, {"3", "0"}, {"3", "0", "2"}]
    assert [Best("loss", n, mode="max").keeps(facts) for n in (1, 3)] == [{"2"}, {"2", "0", "3"}]
    assert cli.main(["verify", root]) == cli.main(["ls", root]) == cli.main(["ls", root, "--json"]) == 0
    said = capsys.readouterr().out
    assert "loss nan" in said and '"loss": "nan"' in said and "NaN" not in said
    assert cli.main(["show", root]) == 0 and "metric loss" in capsys.readouterr().out


def test_a_refusal_changes_nothing(shm: Path, tmp_path: Path) -> None:
    """`save(3.0)` ended the agent; a metric that is no number made close() False for good."""
    state = State(torch.nn.Linear(4, 4))
    with Manager(tmp_path / "run", every=1) as manager:
        manager.restore(state)
        for save in (manager.save, manager.step):
            for step, metrics in ((3.0, {}), (3, {"loss": "x"})):
                with pytest.raises(TypeError):
                    save(step, state, metrics=metrics)  # type: ignore[arg-type]
        handle = manager.step(torch.tensor(4), state, metrics={"loss": numpy.float64("nan")})
        assert handle is not None and handle.wait("durable", 10) and handle.seq == 1
        assert str(handle.checkpoint_id).startswith("seq-000001.step-0000000004.")


def test_a_second_manager_of_a_root_is_refused_while_the_first_is_open(shm: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    (tmp_path / "link").symlink_to(root)
    state = State(torch.nn.Linear(4, 4))
    first = Manager(root)
    first.restore(state)
    for again in (root, tmp_path / "link", f"{root}/../run"):
        with pytest.raises(RunIsOwned, match="this process already has a Manager of"):
            Manager(again)
    with Manager(tmp_path / "other"):
        assert first.save(0, state).wait("durable", 60)  # the first's agent is still there
    assert first.close()
    with Manager(root) as second:
        assert second.restore(state).next_step == 1
