"""What is trained and saved: a GPT-2-like model with AdamW in float32, alone or sharded with FSDP2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyperpod_kit.storage.bench.replay.peers import Peers


@dataclass(frozen=True)
class Size:
    """Layers, width, vocabulary and positions; a state is 12 bytes a parameter."""

    layers: int
    width: int
    vocabulary: int = 50257
    positions: int = 1024


SIZES: dict[str, Size] = {"tiny": Size(2, 128, 4096, 128), "0.5g": Size(5, 512), "2g": Size(18, 768)}
MODES = {"single": 1, "fsdp2": 2}
"""How the state lies, and the number of ranks."""


def rank_count_of_mode(mode: str) -> int:
    """Parse how many ranks a mode has: one of MODES, or `fsdp2x8`: eight."""
    if mode in MODES:
        return MODES[mode]
    return int(mode.partition("x")[2])


def model_dimensions_by_name_or_bytes(name: str) -> Size:
    """Look up a size of SIZES, or make one of about as many bytes as the number that `name` is."""
    if name in SIZES:
        return SIZES[name]
    parameters = int(name) / 12
    width = 2048
    if parameters < 16e6:
        width = 128
    elif parameters < 1e9:
        width = 512
    layers = max(1, round((parameters - 4096 * width) / (12 * width * width)))
    return Size(layers, width, 4096, 128)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.attention_in(self.ln_1(x)).chunk(3, dim=-1)
        x = x + self.attention_out(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True))
        out: torch.Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.ln_2(x))))
        return out


class Gpt(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.positions, size.width)
        self.blocks = nn.ModuleList(Block(size.width) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.norm(x)
        return out


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor behind a parameter: a DTensor's local part."""
    part: Any = tensor.detach()
    if hasattr(part, "to_local"):
        part = part.to_local()
    return part  # type: ignore[no-any-return]


def _fill_evenly_spaced_or_zeros(tensor: torch.Tensor, low: float, high: float, *, zeros: bool) -> None:
    """Fill with evenly spaced values, which are made much faster than random ones; or with zeros."""
    if zeros:
        tensor.zero_()
    else:
        torch.linspace(low, high, tensor.numel(), out=tensor.view(-1))


class Workload:
    """Model, optimizer and batches."""

    def __init__(self, size: str, mode: str, peers: Peers, *, seed: int = 1, zeros: bool = False) -> None:
        """`zeros`: a state that a restore must bring back."""
        self.size = model_dimensions_by_name_or_bytes(size)
        with torch.device("meta"):
            self.model = Gpt(self.size)
        if mode.startswith("fsdp2"):
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (peers.world,))
            for block in self.model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.model.to_empty(device="cpu")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        for number, parameter in enumerate(self.model.parameters()):
            moments = torch.empty_like(parameter.detach()), torch.empty_like(parameter.detach())
            # Different values everywhere, and different in each tensor and rank: a misplaced byte shows.
            unlike = 1.0 + 1e-3 * (number + 500 * peers.rank + seed)
            _fill_evenly_spaced_or_zeros(local_tensor(parameter), -0.02, 0.02 * unlike, zeros=zeros)
            _fill_evenly_spaced_or_zeros(local_tensor(moments[0]), -1e-4, 1e-4 * unlike, zeros=zeros)
            _fill_evenly_spaced_or_zeros(local_tensor(moments[1]), 1e-9, 1e-6 * unlike, zeros=zeros)
            self.optimizer.state[parameter] = {
                "step": torch.tensor(1.0),
                "exp_avg": moments[0],
                "exp_avg_sq": moments[1],
            }
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """List the live local tensors of the whole state. A restore may put new ones in place of the optimizer's."""
        local_tensors = []
        for parameter in self.model.parameters():
            moments = self.optimizer.state[parameter]
            local_tensors += [
                local_tensor(parameter),
                local_tensor(moments["exp_avg"]),
                local_tensor(moments["exp_avg_sq"]),
            ]
        return local_tensors

    def update_all_values(self) -> None:
        """Update every byte in place, as an optimizer step does."""
        for tensor in self.tensors:
            tensor.mul_(-1.0009765625)
