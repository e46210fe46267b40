"""The generators go on where they were, through the JSON that a checkpoint keeps of them."""

from __future__ import annotations

import json
import random

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from hyperpod_kit.checkpoint.codec import codec  # noqa: E402
from hyperpod_kit.checkpoint.state import randomness  # noqa: E402


def draw():
    return [random.random(), random.gauss(0, 1), numpy.random.standard_normal(), float(torch.rand(()))]


@pytest.mark.parametrize("odd", [False, True], ids=["no spare gaussian", "a spare gaussian"])
def test_all_generators_go_on(odd):
    if odd:
        random.gauss(0, 1)
        numpy.random.standard_normal()
    tensors = {}

    def take(name, tensor):
        tensors[name] = tensor.clone()
        return name

    kept = json.dumps(codec.encode(randomness.capture(), "rng", take))
    expected = draw()
    draw()
    randomness.restore(codec.decode(json.loads(kept), tensors.__getitem__))
    assert draw() == expected
