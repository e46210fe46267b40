"""Ranks that hold other names: who holds what, what must be in the shards, and how a tree of many ranks is written."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List

import pytest

from hyperpod_kit.checkpoint.agent.reports import assemble, extra_state, name_coverage, shard_report
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Page, ShardFacts, SlotState, parse_page
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.format.digest import small_object_digest
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord
from hyperpod_kit.checkpoint.repository.format.shard import Placed, TensorSpec
from hyperpod_kit.errors import CheckpointError


def _tree(*names: str, listed: bool = True) -> Dict[str, Any]:
    tree: Dict[str, Any] = {"model": {name: {"$": "tensor", "name": f"model.{name}"} for name in names}}
    return {**tree, name_coverage.SHARED_NAMES: [[f"model.{name}", "F32 [2]"] for name in names]} if listed else tree


def _reports(*trees: Dict[str, Any], plans: str = "", writes: Any = None, **changed: Any) -> Dict[int, Any]:
    reports = {}
    for rank, tree in enumerate(trees):
        extra = json.dumps(tree, separators=(",", ":"))
        names = (writes or {}).get(rank, sorted(tree["model"]))
        pieces = tuple(
            Placed(TensorSpec(f"model.{name}", "F32", (2,)), 8 * n, 8 * n + 8) for n, name in enumerate(names)
        )
        page = Page(
            state=SlotState.SEALED,
            origin=CaptureOrigin(
                rank=rank,
                world=len(trees),
                incarnation="a",
                run="r",
                run_id="i",
            ),
            epoch=1,
            seq=4,
            step=9,
            shard=ShardFacts(
                digest="blake2b",
                chunk=16,
                size=64,
                plan=plans[rank] if plans else "p",
                tensors=len(names),
                plan_tensors=2,
                extra_size=len(extra),
                extra_root=small_object_digest(extra.encode()),
                root=f"blake2b:{rank}",
            ),
        )
        record = FileRecord(layout.shard_file(rank), 64, f"blake2b:{rank}", rank)
        reports[rank] = shard_report.Report(page, record, extra, pieces)
    for name, value in changed.items():
        reports[1] = reports[1]._replace(page=parse_page({**reports[1].page.to_json(), name: value}))
    return reports


def test_stages_make_one_checkpoint_that_has_the_names_of_all() -> None:
    saved = [_tree("a", "both"), _tree("both", "b"), _tree("both", "b")]
    made = assemble.build_commit_files(_reports(*saved, plans="xyy", writes={0: ["a"], 1: ["b"], 2: ["both"]}), {})
    assert made.manifest.tensors == 3 and made.manifest.plan == name_coverage.combine_plans(["x", "y", "y"]) != "x"
    body = json.loads(made.extra)
    assert body["format"] == layout.EXTRA_FORMAT_OF_STAGES and body["ranks"][2] == {}  # as rank 1 has it
    for rank, tree in enumerate(saved):
        assert extra_state.parse_rank_tree_outside_shard(made.extra, rank) == {"model": tree["model"]}
    assert extra_state.parse_rank_tree_outside_shard(made.extra, 3) == {"model": saved[0]["model"]}


def test_the_whole_of_stages_is_what_all_of_them_hold() -> None:
    groups = [{"lr": 1.0, "params": ["a"]}], [{"lr": 1.0, "params": ["b"]}]
    saved = [
        {
            **_tree(name),
            "optimizer": {"state": {name: 1}, "param_groups": group},
            "extra": {name: 1},
            "objects.loader": {name: 1},
        }
        for name, group in zip("ab", groups)
    ]
    whole = extra_state.merge_stage_trees(assemble.build_commit_files(_reports(*saved, plans="xy"), {}).extra)
    assert sorted(whole["model"]) == ["a", "b"] and whole["extra"] == whole["objects.loader"] == {"a": 1}
    assert whole["optimizer"] == {"state": {"a": 1, "b": 1}, "param_groups": [{"lr": 1.0, "params": ["a", "b"]}]}


def test_ranks_with_the_same_names_are_written_as_ever() -> None:
    saved = [{**_tree("a", "b", listed=False), "replicas": {"all": "same"}, "rng": rank} for rank in range(2)]
    made = assemble.build_commit_files(_reports(*saved, writes={0: ["a"], 1: ["b"]}), {})
    assert made.manifest.plan == "p" and json.loads(made.extra)["format"] == layout.EXTRA_FORMAT
    assert extra_state.parse_rank_tree_outside_shard(made.extra, 1) == {"model": saved[1]["model"], "rng": 1}


@pytest.mark.parametrize(
    ("saved", "how", "words"),
    [
        (
            [_tree("a", "both"), _tree("both", "b")],
            {"writes": {0: ["a"], 1: ["both"]}},
            "model.b, which rank 1 holds, is in no shard",
        ),
        ([_tree("a", listed=False), _tree("b", listed=False)], {}, "rank 0 holds model.a and rank 1 does not"),
        (
            [_tree("a"), {**_tree("a"), name_coverage.SHARED_NAMES: [["model.a", "F32 [7]"]]}],
            {"writes": {0: ["a"], 1: []}},
            "model.a is F32 [2] on rank 0 and F32 [7] on rank 1; if each rank has its own: State(own=['model.a'])",
        ),
        (
            [_tree("a"), {**_tree("a"), "replicas": {"all": "x"}}, {**_tree("a"), "replicas": {"all": "y"}}],
            {},
            "tensors that rank 1 and rank 2 both hold differ",
        ),
    ],
)
def test_what_is_no_checkpoint_says_why(saved: List[Dict[str, Any]], how: Dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError) as found:
        assemble.build_commit_files(_reports(*saved, plans="xyz", **how), {})
    assert words in str(found.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"step": 8}, "step is 9 on rank 0 and 8 on rank 1"),
        ({"run_id": "j"}, "run_id is i on rank 0 and j on rank 1"),
        ({"chunk": 32}, "chunk is 16 on rank 0 and 32 on rank 1"),
    ],
)
def test_captures_that_do_not_belong_together_say_in_what_they_differ(changed: Dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        assemble.build_commit_files(_reports(_tree("a"), _tree("b"), **changed), {})


# --- the ranks agree ------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint.codec import codec  # noqa: E402
from hyperpod_kit.checkpoint.ranks import placement  # noqa: E402
from hyperpod_kit.checkpoint.ranks.submeshes import TensorLayout  # noqa: E402
from hyperpod_kit.checkpoint.state import per_rank_paths  # noqa: E402


class Group:
    """Ranks as threads."""

    def __init__(self, rank: int, said: List[Any], all_here: threading.Barrier) -> None:
        self.rank, self.placement = rank, placement.NamePlacement(rank)
        self._said, self._all_here = said, all_here

    def global_rank(self, rank: int) -> int:
        return rank

    def gather(self, value: Any) -> List[Any]:
        self._said[self.rank] = value
        self._all_here.wait(10)
        found = list(self._said)
        self._all_here.wait(10)
        return found


def _agree(*names: Dict[str, TensorLayout]) -> List[placement.NamePlacement]:
    said, all_here = [None] * len(names), threading.Barrier(len(names))
    ranks = [Group(rank, said, all_here) for rank in range(len(names))]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(placement.gather_and_set_placement, ranks, names))
    return [mine.placement for mine in ranks]


def _plain(**kinds: str) -> Dict[str, TensorLayout]:
    return {name.replace("_", "."): TensorLayout(kind) for name, kind in kinds.items()}


def test_ranks_with_the_same_names_know_of_nothing_else() -> None:
    for found in _agree(_plain(model_a="x"), _plain(model_a="x")):
        assert (
            found.ranks_by_name == {}
            and found.replica_and_holders("model.a") is None
            and found.replica_and_holders("anything") is None
        )


def test_a_name_is_held_by_the_ranks_that_have_it_and_a_new_one_by_those_that_have_its_neighbours() -> None:
    first = _plain(model_embed_w="x", model_a_w="x", optimizer="", optimizer_state_a_w="")
    last = _plain(model_embed_w="x", model_b_w="x", optimizer="", optimizer_state_b_w="")
    of = [found.replica_and_holders for found in _agree(first, first, last, {**last, **_plain(objects_ema_w="x")})]
    assert of[1]("model.a.w") == ((1, 2), (0, 1)) and of[2]("model.b.w") == ((0, 2), (2, 3))
    assert of[0]("model.embed.w") is None is of[3]("model.embed.w")
    assert of[0]("optimizer.state.a.w.exp_avg") == ((0, 2), (0, 1))  # not made yet when they agreed
    assert of[2]("optimizer.state.embed.w.exp_avg") is None  # nobody's optimizer has it yet: as the model
    assert of[1]("model.a.late") == ((1, 2), (0, 1)) and of[1]("optimizer.param_groups.0.lr") is None
    assert of[3]("objects.ema.w") == ((0, 1), (3,)) and of[1]("objects.ema.late") == ((0, 1), (1,))


def test_one_name_of_two_shapes_is_refused_on_every_rank() -> None:
    with pytest.raises(CheckpointError, match=r"model.w is F32 \[2\] on rank 0 and F32 \[3\] on rank 1"):
        _agree(_plain(model_w="F32 [2]"), _plain(model_w="F32 [3]"))


def _on(*ranks: int, kind: str = "F32 [4]", extents: Any = (), placements: str = "[Shard(dim=0)]") -> TensorLayout:
    return TensorLayout(kind, extents or (len(ranks),), ranks, placements)


def test_sub_meshes_that_hold_a_tensor_alike_are_known_by_its_name_its_state_and_its_mesh() -> None:
    even, odd = {"model.w": _on(0, 2)}, {"model.w": _on(1, 3)}
    for rank, found in enumerate(_agree(even, odd, even, odd)):
        mine = (rank % 2, rank % 2 + 2)
        assert found.ranks_by_name == {} and found.submeshes_if_several("model.w", mine) == ((0, 2), (1, 3))
        assert found.submeshes_if_several("optimizer.state.w.exp_avg", mine) == ((0, 2), (1, 3))
        assert found.submeshes_if_several("extra.late", mine) == ((0, 2), (1, 3))
        assert found.submeshes_if_several("model.w", (0, 1, 2, 3)) == ()


def test_a_stage_holds_alone_what_the_other_has_no_name_for() -> None:
    first = {"model.embed": _on(0, 1), "model.a": _on(0, 1)}
    last = {"model.embed": _on(2, 3), "model.b": _on(2, 3)}
    for rank, found in enumerate(_agree(first, first, last, last)):
        mine = (0, 1) if rank < 2 else (2, 3)
        assert found.submeshes_if_several("model.embed", mine) == ((0, 1), (2, 3))
        assert found.submeshes_if_several("model.a" if rank < 2 else "model.b", mine) == ()
        assert found.submeshes_if_several("extra.late", mine) == ()  # which of the two it is, nobody knows


@pytest.mark.parametrize(
    ("layouts", "words"),
    [
        ([_on(0, 1), _on(0, 1), _on(2, 3, kind="F32 [8]"), _on(2, 3, kind="F32 [8]")], r"F32 \[8\] \[2, 3\]"),
        ([_on(0, 1), _on(0, 1), _on(2, 3, placements="R"), _on(2, 3, placements="R")], r"\[2, 3\] R on rank 2"),
        ([_on(0, 1, 2), _on(0, 1, 2), _on(0, 1, 2), _on(3)], r"\[0, 1, 2\] .* on rank 0 and .* \[3\]"),
        ([_on(0, 1), _on(1, 2), _on(1, 2)], r"\[0, 1\] .* on rank 0 and .* \[1, 2\]"),
        ([_on(0, 1), None, _on(2, 3), _on(2, 3)], r"\[0, 1\] .* rank 1 holds no part"),
        ([_on(0, 1), _on(0, 1), TensorLayout("F32 [4]")], r"\[0, 1\] .* on rank 0 and F32 \[4\] on rank 2"),
    ],
)
def test_meshes_that_cannot_hold_one_tensor_are_refused_by_name(layouts: List[Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=f"model.w is .*{words}"):
        _agree(*({"model.w": layout} if layout else {} for layout in layouts))


def test_optimizers_whose_parameters_have_numbers_alone_are_not_refused() -> None:
    state = "optimizer.state.0"
    for found in _agree(*({state: _on(*mesh, kind="")} for mesh in ([0, 1], [0, 1], [2], [3]))):
        assert found.divided == {}


@pytest.mark.parametrize(
    ("own", "yes", "no"),
    [
        (
            ["model.1.*"],
            ["model.1.weight", "optimizer.state.1.weight.exp_avg", "objects.second.state.1.bias.step"],
            ["model.0.weight", "model.10.weight", "optimizer.state.10.weight.step", "optimizer.param_groups.0.lr"],
        ),
        ("model.*.bias", ["model.1.bias", "optimizer.state.1.bias.exp_avg"], ["model.1.weight"]),
        (["model.1.weight"], ["model.1.weight", "optimizer.state.1.weight.step"], ["model.1.weights", "model.1.bias"]),
        ([], [], ["model.1.weight", "optimizer.state.0"]),
    ],
)
def test_own_is_what_is_named_and_what_the_optimizer_has_for_it(own: Any, yes: List[str], no: List[str]) -> None:
    found = per_rank_paths.PerRankPaths(own, {})
    assert all(path in found for path in yes) and not any(path in found for path in no)


def test_own_takes_the_parts_of_the_state_themselves() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(11)), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    things = {"model": model, "optimizer": optimizer}
    second = per_rank_paths.PerRankPaths([model[1]], things)
    assert "model.1.weight" in second and "model.10.bias" not in second
    assert "optimizer.state.0.weight.momentum" in per_rank_paths.PerRankPaths([model[0].weight], things)
    assert "model.11.running_mean" in per_rank_paths.PerRankPaths([model[11].running_mean], things)
    assert "optimizer.state.0.bias.momentum" in per_rank_paths.PerRankPaths([optimizer], things)
    assert "model.0.weight" in per_rank_paths.PerRankPaths([model], things)
    for bad, kind in (
        ("weight", ValueError),
        (torch.nn.Linear(2, 2), ValueError),
        (torch.zeros(2), ValueError),
        (7, TypeError),
        (torch.optim.SGD([torch.zeros(1)], 0.1), ValueError),
    ):
        with pytest.raises(kind, match="own"):
            per_rank_paths.PerRankPaths([bad], things)


def test_a_place_that_has_another_name_in_the_checkpoint_is_found() -> None:
    def leaf(name: str) -> Dict[str, str]:
        return {"$": "tensor", "name": name}

    live = {"a": leaf("model.a"), "b": [leaf("rank.00002.b")], "tied": leaf("model.a"), "new": leaf("model.new")}
    saved = {"a": leaf("model.a"), "b": [leaf("rank.00000.b")], "tied": leaf("model.tied"), "extra": leaf("x")}
    assert codec.differing_saved_names(live, saved) == {"rank.00002.b": "rank.00000.b"}
