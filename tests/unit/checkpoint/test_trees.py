"""What ranks have in common of their trees, and what each has besides."""

from __future__ import annotations

import json
from typing import Any, Dict

from hypothesis import given
from hypothesis import strategies as some

from hyperpod_kit.checkpoint.agent import assemble, shard_report

values = (
    some.none()
    | some.integers()
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text()
    | some.lists(some.text())
)
trees = some.dictionaries(some.sampled_from("abcdef"), values)


@given(some.lists(trees, min_size=1, max_size=4), some.booleans(), some.integers(1, 6))
def test_each_rank_is_handed_what_makes_its_tree_of_what_is_shared(
    saved: list[Dict[str, Any]], stages: bool, world: int
) -> None:
    texts = [shard_report.split(json.dumps(tree)) for tree in saved]
    assert [{key: json.loads(text) for key, text in parts} for parts in texts] == saved
    extra = assemble._extra(dict(enumerate(texts)), stages=stages)
    shared, parts = assemble.parts_of(extra, world)
    assert len(parts) == world
    for rank, part in enumerate(parts):
        mine = {**json.loads(shared), **part}
        assert mine == assemble.tree_of(extra, rank)
        assert list(mine) == list(assemble.tree_of(extra, rank))
