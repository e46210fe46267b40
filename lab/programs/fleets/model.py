"""What the simulated fleet trains: a 70B Llama under FSDP2 with AdamW, every tensor divided among all ranks.

723 parameters in float32 with two moments each make 2,169 divided tensors; 723 scalar step counters are held by all
ranks and written by one each. Nothing has bytes: only names, shapes, places and texts are made.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from typing import Any, Dict, Iterator, List, Optional, Tuple

from hyperpod_kit.checkpoint.agent.reports.report_texts import ReportEncoder
from hyperpod_kit.checkpoint.agent.reports.shard_report import InShard, Report
from hyperpod_kit.checkpoint.agent.shm import control_page
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Page, ShardFacts, SlotState
from hyperpod_kit.checkpoint.repository.format import digest, layout, manifest
from hyperpod_kit.checkpoint.repository.format.shard import Placed, TensorSpec, _layout_sort_key
from hyperpod_kit.checkpoint.repository.read.rank_extra_state import RankStateLocation

HIDDEN, INNER, VOCABULARY, KEYS, LAYERS = 8192, 28672, 128256, 1024, 80
INCARNATION = "abc123"
HEADER = 750 * 1024
"""Bytes of a shard's header: about 250 a tensor, in whole pages."""

RANDOM_STATE = 5000
"""Bytes of random generators that each rank has for itself."""

Shape = Tuple[int, ...]


@lru_cache(maxsize=None)
def parameter_shapes() -> Dict[str, Shape]:
    """Name -> shape."""
    shapes: Dict[str, Shape] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for number in range(LAYERS):
        at = f"model.layers.{number}."
        shapes.update(
            {
                f"{at}self_attn.q_proj.weight": (HIDDEN, HIDDEN),
                f"{at}self_attn.k_proj.weight": (KEYS, HIDDEN),
                f"{at}self_attn.v_proj.weight": (KEYS, HIDDEN),
                f"{at}self_attn.o_proj.weight": (HIDDEN, HIDDEN),
                f"{at}mlp.gate_proj.weight": (INNER, HIDDEN),
                f"{at}mlp.up_proj.weight": (INNER, HIDDEN),
                f"{at}mlp.down_proj.weight": (HIDDEN, INNER),
                f"{at}input_layernorm.weight": (HIDDEN,),
                f"{at}post_attention_layernorm.weight": (HIDDEN,),
            }
        )
    return {**shapes, "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def sharded_tensors() -> Iterator[Tuple[str, Shape]]:
    """The tensors of which each rank holds rows."""
    for name, shape in parameter_shapes().items():
        yield f"model.{name}", shape
        yield f"optimizer.state.{name}.exp_avg", shape
        yield f"optimizer.state.{name}.exp_avg_sq", shape


def rank_rows(extent: int, world: int, rank: int) -> Tuple[int, int]:
    """[begin, end) of a dimension of that extent on a rank, as torch.chunk cuts it."""
    each = -(-extent // world)
    return min(rank * each, extent), min((rank + 1) * each, extent)


def rank_tensor_specs(rank: int, world: int) -> List[TensorSpec]:
    """What is in a rank's shard."""
    tensor_specs = []
    for name, shape in sharded_tensors():
        begin, end = rank_rows(shape[0], world, rank)
        if end > begin:
            tensor_specs.append(
                TensorSpec(name, "F32", (end - begin, *shape[1:]), (begin, *(0 for _ in shape[1:])), shape)
            )
    steps = sorted(f"optimizer.state.{name}.step" for name in parameter_shapes())
    return tensor_specs + [TensorSpec(name, "F32", ()) for name in steps[rank::world]]


def tensor_count() -> int:
    """How many tensors the checkpoint has."""
    return 4 * len(parameter_shapes())


@lru_cache(maxsize=1)
def _shared_tree() -> Dict[str, Any]:
    def tensor(name: str) -> Dict[str, str]:
        return {"$": "tensor", "name": name}

    names = list(parameter_shapes())
    group = {"lr": 1e-4, "betas": {"$": "tuple", "v": [0.9, 0.95]}, "eps": 1e-8, "weight_decay": 0.1, "params": names}
    return {
        "model": {name: tensor(f"model.{name}") for name in names},
        "optimizer": {
            "state": {
                name: {key: tensor(f"optimizer.state.{name}.{key}") for key in ("step", "exp_avg", "exp_avg_sq")}
                for name in names
            },
            "param_groups": [group],
        },
        "classes": {"optimizer": "torch.optim.adamw.AdamW"},
        "save": {"parent": None, "metrics": {}},
    }


@lru_cache(maxsize=1)
def _shared_state_json() -> str:
    return json.dumps(_shared_tree(), separators=(",", ":"))


def rank_state_json(rank: int, seq: int) -> str:
    """Return the part of the non-tensor state that lies in the rank's shard, as JSON."""
    state = hashlib.shake_128(b"%d %d" % (rank, seq)).digest(RANDOM_STATE)
    random = {"torch": {"$": "bytes", "v": base64.b64encode(state).decode()}}
    return json.dumps({"extra": {"tokens": seq}, "rng": random}, separators=(",", ":"))


def full_state_json(rank: int, seq: int) -> str:
    """Return all non-tensor state of a rank at one save, as JSON."""
    return _shared_state_json()[:-1] + "," + rank_state_json(rank, seq)[1:]


def rank_state_location(rank: int, seq: int, end: int) -> Optional[InShard]:
    """Where a rank's own part is, behind tensors that end at byte `end`. Rank 0 tells all of its own."""
    if not rank:
        return None
    encoded = rank_state_json(rank, seq).encode()
    return InShard(RankStateLocation(end, len(encoded), digest.small_object_digest(encoded)), ("extra", "rng"))


def placed_tensors(rank: int, world: int) -> Tuple[Placed, ...]:
    """Return the tensors of a rank with their byte ranges, in the order in which a shard is laid out."""
    at = HEADER
    placements = []
    for spec in sorted(rank_tensor_specs(rank, world), key=_layout_sort_key):
        placements.append(Placed(spec, at, at + spec.nbytes))
        at += spec.nbytes
    return tuple(placements)


def capture_key(seq: int) -> control_page.Key:
    return (1, seq, INCARNATION)


def sealed_page(rank: int, world: int, seq: int, run_id: str, root: str, body: str, end: int, first: int) -> Page:
    """The control page of a sealed capture whose tensors end at byte `end`; `first` of them begin in it."""
    return Page(
        SlotState.SEALED,
        CaptureOrigin(
            rank, world, INCARNATION, "fleet", run_id, root, {"slurm_job_id": "4711", "restart": "0"}, (1, 2)
        ),
        1,
        seq,
        10 * seq,
        ShardFacts(
            "xxh3",
            digest.CHUNK,
            end + digest.leaf_count(end, digest.CHUNK) * digest.LEAF_BYTES,
            digest.small_object_digest(f"layout {rank} of {world}".encode()),
            "blake2b:" + "1" * 32,
            first,
            tensor_count(),
            len(body),
            digest.small_object_digest(body.encode()),
            f"xxh3:{rank:032x}",
        ),
    )


def shard_report(rank: int, world: int, seq: int, run_id: str, root: str) -> Report:
    """What the agent of a rank has to say when its shard is on storage."""
    pieces, body = placed_tensors(rank, world), full_state_json(rank, seq)
    end = HEADER
    if pieces:
        end = pieces[-1].end
    made = sealed_page(
        rank,
        world,
        seq,
        run_id,
        root,
        body,
        end,
        sum(piece.spec.is_at_origin for piece in pieces),
    )
    return Report(
        made,
        manifest.FileRecord(layout.shard_file(rank), made.shard.size, made.shard.root, rank),
        body,
        pieces,
        rank_state_location(rank, seq, end),
    )


class SharedEncoder(ReportEncoder):
    """The texts of all ranks. Each rank's own encoder says a text outright once it was asked for it; this one never
    does, or all ranks would."""

    def look_up_text_and_inline_from_now(self, text_digest: str) -> Optional[str]:
        text_or_none = super().look_up_text_and_inline_from_now(text_digest)
        self._requested.clear()
        return text_or_none


def _slice_layout_key(shape: Shape, rows: int) -> Optional[Tuple[Any, ...]]:
    """Return what the place of a parameter's slice in a layout depends on; None without rows."""
    if rows <= 0:
        return None
    return _layout_sort_key(TensorSpec("", "F32", (rows, *shape[1:])))[:2]


class Reporters:
    """The encoders of all ranks: what each would say, with less work for those whose shards are alike.

    A rank without scalars says what `ReportEncoder` encodes of another one of its pattern, with its own boxes, places,
    sizes, random states and digests put in their places. `is_pattern_as_encoded` compares that with what its own
    encoder says.
    """

    def __init__(self, world: int, run_id: str, root: str) -> None:
        self._world, self._run_id, self._root = world, run_id, root
        self.encoder = SharedEncoder()
        self._patterns: Dict[Tuple[Any, ...], Tuple[List[Any], Tuple[int, ...]]] = {}
        self._alike: Tuple[int, List[Any]] = (0, [])

    def encode_report(self, rank: int, seq: int) -> Dict[str, Any]:
        """Return the encoded report of a rank; its layout is in it at the first save only."""
        self.encoder.forget_sent_layout()
        if seq > 1:
            return self._encode_same_layout(rank, seq)
        if rank < len(parameter_shapes()):
            encoded = self.encoder.encode(shard_report(rank, self._world, seq, self._run_id, self._root))
        else:
            encoded = self._encode_from_pattern(rank, seq)
        return encoded

    def is_pattern_as_encoded(self, rank: int) -> bool:
        """Return whether the report made from a pattern equals that of the rank's own encoder."""
        self.encoder.forget_sent_layout()
        expected = self.encoder.encode(shard_report(rank, self._world, 1, self._run_id, self._root))
        page = expected["page"]
        page["extra_root"] = ""  # of a text that is not made here
        short = self._encode_from_pattern(rank, 1)
        short["page"]["extra_root"] = ""
        return json.dumps(expected, sort_keys=True) == json.dumps(short, sort_keys=True)

    def _encode_from_pattern(self, rank: int, seq: int) -> Dict[str, Any]:
        shapes = sorted(set(parameter_shapes().values()))
        cut = [rank_rows(shape[0], self._world, rank) for shape in shapes]
        kind = tuple(_slice_layout_key(shape, end - begin) for shape, (begin, end) in zip(shapes, cut))
        if kind not in self._patterns:
            self.encoder.forget_sent_layout()
            full = self.encoder.encode(shard_report(rank, self._world, seq, self._run_id, self._root))
            _, boxes, scalars = json.loads(full["own"])
            assert not scalars
            self._patterns[kind] = (full["pattern"], tuple(shapes.index(tuple(box[3])) for box in boxes))
        pattern, numbers = self._patterns[kind]
        boxes = []
        for number in numbers:
            (begin, end), shape = cut[number], shapes[number]
            boxes.append(["F32", [end - begin, *shape[1:]], [begin, *(0 for _ in shape[1:])], list(shape)])
        header_bytes = 0
        if boxes:
            header_bytes = HEADER
        layout_text = json.dumps([header_bytes, boxes, []], separators=(",", ":"))
        return {**self._encode_same_layout(rank, seq), "own": layout_text, "pattern": pattern}

    def _encode_same_layout(self, rank: int, seq: int) -> Dict[str, Any]:
        """Return the encoded report of a rank without its layout, for ranks other than 0."""
        scalars = len(range(rank, len(parameter_shapes()), self._world))
        size = HEADER + 4 * scalars
        for shape in parameter_shapes().values():
            begin, end = rank_rows(shape[0], self._world, rank)
            columns = 1
            if len(shape) > 1:
                columns = shape[1]
            size += 12 * (end - begin) * columns
        if self._alike[0] != seq:
            self._alike = (
                seq,
                self.encoder.encode(shard_report(1, self._world, seq, self._run_id, self._root))["parts"],
            )
        body = full_state_json(rank, seq)
        rank_state = rank_state_location(rank, seq, size)
        assert rank_state is not None, "rank 0 is not short"
        made = sealed_page(rank, self._world, seq, self._run_id, self._root, "", size, scalars)
        made = replace(made, shard=replace(made.shard, extra_size=len(body), extra_root="blake2b:" + "2" * 32))
        record = manifest.FileRecord(layout.shard_file(rank), made.shard.size, made.shard.root, rank)
        return {
            "page": made.to_json(),
            "record": record.to_json(),
            "parts": self._alike[1],
            "tree": list(rank_state.location),
        }
