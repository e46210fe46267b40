"""What a restore reads of storage and what comes over the wire, counted where the bytes pass: no estimate."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from typing import Any, Dict, Iterator, List

WIDTH = 512  # 12.6 MB of state: pages at the ends of files are no part worth a thought


def build(kind: str, width: int) -> tuple[Any, Any]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    world = int(os.environ["WORLD_SIZE"])
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    model: Any = torch.nn.Sequential(*layers, torch.nn.Linear(width, 3))
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif kind in ("fsdp2", "hsdp"):
        shape, names = ((world,), ("shard",)) if kind == "fsdp2" else ((2, world // 2), ("replicate", "shard"))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


class Counted:
    """Bytes by name of the file, of all reads of this process from a root; and bytes that peers sent it."""

    def __init__(self) -> None:
        self.read: Dict[str, int] = {}
        self.received = 0
        self.flipped = 0
        self._lock = threading.Lock()

    def add(self, name: str, size: int) -> None:
        with self._lock:
            name = name.rpartition("/")[2]
            self.read[name] = self.read.get(name, 0) + size

    @property
    def shards(self) -> int:
        return sum(size for name, size in self.read.items() if name.endswith(".safetensors"))


@contextlib.contextmanager
def counting(flip: bool = False) -> Iterator[Counted]:
    """Count while it is open. What O_DIRECT rounds up is counted too. `flip`: one bit of the first large thing that
    comes is changed on its way."""
    import torch.distributed as dist

    from hyperpod_kit.checkpoint.repository.store import posix

    found = Counted()
    opened, small, sent = posix.FileReader.read_into, posix.PosixStore.read, dist.broadcast
    received = dist.irecv
    made = posix.FileReader.__init__

    def init(self: Any, path: str, **how: Any) -> None:
        made(self, path, **how)
        self.counted_as = path

    def read_into(self: Any, view: memoryview, offset: int) -> int:
        count = opened(self, view, offset)
        found.add(self.counted_as, count)
        return count

    def read(self: Any, name: str, *rest: Any) -> bytes:
        data = small(self, name, *rest)
        found.add(name, len(data))
        return data

    def changed(tensor: Any) -> None:
        if flip and not found.flipped and tensor.numel() * tensor.element_size() > 100_000:
            found.flipped += 1
            tensor.view(-1)[1000] ^= 4

    class Waited:
        def __init__(self, tensor: Any, work: Any) -> None:
            self.tensor, self.work = tensor, work

        def wait(self) -> None:
            self.work.wait()
            changed(self.tensor)

    def broadcast(tensor: Any, src: int, group: Any = None, **how: Any) -> Any:
        found.received += tensor.numel() * tensor.element_size() if src != dist.get_rank() else 0
        sent(tensor, src=src, group=group, **how)
        if src != dist.get_rank():
            changed(tensor)

    def irecv(tensor: Any, **how: Any) -> Any:
        found.received += tensor.numel() * tensor.element_size()
        return Waited(tensor, received(tensor, **how))

    replaced = [
        (posix.FileReader, "__init__", init),
        (posix.FileReader, "read_into", read_into),
        (posix.PosixStore, "read", read),
        (dist, "broadcast", broadcast),
        (dist, "irecv", irecv),
    ]
    before = [getattr(where, name) for where, name, _ in replaced]
    for where, name, new in replaced:
        setattr(where, name, new)
    try:
        yield found
    finally:
        for (where, name, _), old in zip(replaced, before):
            setattr(where, name, old)


def digests(model: Any, optimizer: Any) -> List[str]:
    """Of every whole tensor of model and optimizer. A collective."""
    found = list(model.parameters())
    for values in optimizer.state.values():
        found += [values[key] for key in sorted(values)]
    whole = [getattr(one, "full_tensor", lambda one=one: one)() for one in found]
    return [hashlib.blake2b(bytes(one.detach().numpy().tobytes()), digest_size=8).hexdigest() for one in whole]


def save(kind: str, root: str, width: int = WIDTH) -> List[str]:
    import torch

    from hyperpod_kit.checkpoint import Manager, State

    torch.manual_seed(7)
    model, optimizer = build(kind, width)
    state, manager = State(model, optimizer), Manager(root)
    manager.restore(state)
    model(torch.ones(2, width)).square().mean().backward()
    optimizer.step()
    assert manager.save(1, state, on_busy="wait").wait("durable", 120)
    assert manager.close()
    return digests(model, optimizer)


def restores(kinds: List[str], root: str, flip_on: int = -1) -> Dict[str, Dict[str, Any]]:
    """Cold restores in several divisions, one after another."""
    return {kind: restore(kind, root, flip=flip_on == int(os.environ["RANK"])) for kind in kinds}


def restore_slowly(root: str) -> Dict[str, Any]:
    """With rounds of one chunk, and a fabric that is found to be slow after the first."""
    from hyperpod_kit.checkpoint.dcp import reshard, sharing

    sharing._READS_PER_ROUND = 1
    assert hasattr(reshard, "is_forwarding_too_slow")
    vars(reshard)["is_forwarding_too_slow"] = lambda paces: True
    return restore("fsdp2", root)


def restore(kind: str, root: str, width: int = WIDTH, flip: bool = False, weights: bool = False) -> Dict[str, Any]:
    """What this rank read (`shards`, `other` bytes) and received, and what it then holds."""
    import torch

    from hyperpod_kit.checkpoint import Manager, State, load_weights

    torch.manual_seed(99)
    model, optimizer = build(kind, width)
    if weights:
        with counting() as found:
            load_weights(root, model)
    else:
        state, manager = State(model, optimizer), Manager(root)
        with counting(flip) as found:
            assert getattr(manager.restore(state), "tier", "") == "storage"
        assert manager.close()
    held = [*model.parameters(), *(v for values in optimizer.state.values() for v in values.values())]
    local = [getattr(one, "to_local", lambda one=one: one)() for one in held]
    return {
        "shards": found.shards,
        "other": sum(found.read.values()) - found.shards,
        "received": found.received,
        "flipped": found.flipped,
        "needed": sum(one.numel() * one.element_size() for one in local),
        "holds": digests(model, optimizer),
    }
