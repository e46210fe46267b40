"""What a checkpoint cannot hold is refused with its path, and what is offered instead can be saved."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import State  # noqa: E402
from hyperpod_kit.checkpoint.ranks.collectives import Ranks  # noqa: E402
from hyperpod_kit.errors import StateNotSerializable  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, of layouts that it calls beta


def refused(value: Any) -> StateNotSerializable:
    with pytest.raises(StateNotSerializable) as caught:
        State(extra={"x": value}, rng=False).tensors(Ranks())
    assert caught.value.path.endswith("extra.x")
    return caught.value


def fits(*parts: Any) -> None:
    assert State(extra={"x": list(parts)}, rng=False).tensors(Ranks()).pieces


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_sparse(layout: str) -> None:
    x = torch.eye(3).to_sparse() if layout == "coo" else getattr(torch.eye(3), f"to_sparse_{layout}")()
    said = refused(x)
    assert f"sparse_{layout} tensor" in said.message and "x.to_dense()" in str(said.hint)
    for call in ("indices", "values"):
        assert f"{call}()" in str(said.hint)
    if layout == "coo":
        x = x.coalesce()
        parts = [x.indices(), x.values(), list(x.shape)]
        fits(*parts)
        assert torch.equal(torch.sparse_coo_tensor(*parts).to_dense(), torch.eye(3))
    fits(x.to_dense())


def test_quantised() -> None:
    x = torch.quantize_per_tensor(torch.eye(3), 0.5, 1, torch.qint8)
    said = refused(x)
    assert "torch.qint8" in said.message and "x.int_repr(), x.q_scale() and x.q_zero_point()" in str(said.hint)
    fits(x.int_repr(), x.q_scale(), x.q_zero_point(), x.dequantize())


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested(layout: Any) -> None:
    x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    assert refused(x).hint == "in place of rank.00000.extra.x save list(x.unbind())"
    fits(*x.unbind())


def test_a_class_that_cannot_be_taken_apart() -> None:
    Scaled = type("Scaled", (torch.Tensor,), {})
    said = refused(torch.ones(2).as_subclass(Scaled))
    assert said.message == "state at rank.00000.extra.x is a tensor subclass Scaled, which a checkpoint cannot hold"
    assert str(said.hint).endswith("save the plain tensors that it is made of, or give its class __tensor_flatten__")
    assert "to_empty" in str(refused(torch.empty(2, device="meta")).hint)
