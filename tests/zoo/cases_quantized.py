"""Tensor subclasses and observers: torchao and torch.ao."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.zoo.training import Case, Layout, Training

WIDE = 64


class Wide(nn.Module):
    """With weights that are large enough for moments of eight bits on each of four ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, batch: Any) -> Any:
        return self.last(torch.nn.functional.gelu(self.first(batch)))


def _low_bit_moments(name: str, **options: Any) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        import torchao.optim

        torch.manual_seed(seed)
        model = Wide().to(torch.bfloat16) if "bf16_stochastic_round" in options else Wide()
        model = layout.divide(model)

        def loss(batch: Any) -> Any:
            batch = batch.to(torch.bfloat16) if "bf16_stochastic_round" in options else batch
            return (model(batch) - batch).float().square().mean()

        optimizer = getattr(torchao.optim, name)(model.parameters(), lr=1e-2, **options)
        return Training(model, optimizer, loss=loss, width=WIDE)

    return make


class Adapted(nn.Module):
    """A frozen base, which is quantised, and a trained layer on each side of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.base, self.last = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.base.requires_grad_(False)

    def forward(self, batch: Any) -> Any:
        with torch.no_grad():  # a quantised product need not know how to go backward
            hidden = self.base(self.first(batch))
        return self.last(hidden)


def _quantized_base(quantize: Callable[[Any], Any]) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        torch.manual_seed(seed)
        model = Adapted()
        quantize(model.base)
        for param in model.base.parameters():
            param.requires_grad_(False)
        layout.divide(model)
        trained = [param for param in model.parameters() if param.requires_grad]
        return Training(model, torch.optim.AdamW(trained, lr=1e-2), width=WIDE)

    return make


def _by_config(name: str, **options: Any) -> Callable[[Any], Any]:
    def quantize(layer: Any) -> Any:
        import torchao.quantization

        torchao.quantization.quantize_(layer, getattr(torchao.quantization, name)(**options))

    return quantize


def _nf4(layer: Any) -> None:
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

    layer.weight = nn.Parameter(to_nf4(layer.weight.detach(), 16, 16), requires_grad=False)


def _float8(seed: int, layout: Layout) -> Training:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    torch.manual_seed(seed)
    model = Wide()
    gather = layout.name == "fsdp2"
    convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=gather, emulate=True))
    layout.divide(model)
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), width=WIDE)


def _trained_in_int8(seed: int, layout: Layout) -> Training:
    from torchao.prototype.quantized_training import int8_weight_only_quantized_training
    from torchao.quantization import quantize_

    torch.manual_seed(seed)
    model = Wide()
    quantize_(model, int8_weight_only_quantized_training())
    layout.divide(model)
    return Training(model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9), width=WIDE)


def _torchao_qat(seed: int, layout: Layout) -> Training:
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    torch.manual_seed(seed)
    model = Wide()
    weights = IntxFakeQuantizeConfig(torch.__dict__["int4"], group_size=32)
    quantize_(model, QATConfig(weight_config=weights, step="prepare"))
    layout.divide(model)
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), width=WIDE)


def _observed(observer: Callable[[], Any], *, qat: bool) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        from torch.ao import quantization

        torch.manual_seed(seed)
        model: Any = nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE)).train()
        model.qconfig = observer()
        if not qat:
            model = quantization.prepare(model.eval())
            model.requires_grad_(True)
        else:
            model = quantization.prepare_qat(model)
        layout.divide(model)
        return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), width=WIDE)

    return make


def _config(name: str) -> Callable[[], Any]:
    def made() -> Any:
        from torch.ao.quantization import qconfig

        return getattr(qconfig, name)

    return made


def _converted(seed: int, layout: Layout) -> Training:
    """int8 modules of torch.ao, whose packed weights are no parameters, before a layer that is trained."""
    from torch.ao import quantization

    torch.manual_seed(seed)
    base = quantization.quantize_dynamic(nn.Sequential(nn.Linear(WIDE, WIDE)), {nn.Linear}, dtype=torch.qint8)
    model = nn.Sequential(base, nn.Linear(WIDE, WIDE))
    return Training(model, torch.optim.AdamW(model[1].parameters(), lr=1e-2), width=WIDE)


def _granular(name: str) -> dict[str, Any]:
    return {"weight_dtype": getattr(torch, name)}


def cases() -> Iterator[Case]:
    for name in ("AdamW8bit", "Adam8bit", "AdamW4bit", "Adam4bit", "AdamWFp8", "AdamFp8"):
        yield Case("torchao", f"optim.{name}", _low_bit_moments(name))
    rounded = _low_bit_moments("_AdamW", bf16_stochastic_round=True)
    yield Case("torchao", "optim._AdamW, bf16 with stochastic rounding", rounded)
    yield Case("torchao", "float8 training", _float8)
    yield Case("torchao", "int8 quantized training", _trained_in_int8)
    yield Case("torchao", "QAT, int4 weights", _torchao_qat, ("1", "fsdp2"))
    for name in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig"):
        yield Case("torchao", name, _quantized_base(_by_config(name)))
    for kind in ("int4", "int2"):
        quantize = _by_config("IntxWeightOnlyConfig", **_granular(kind))
        yield Case("torchao", f"IntxWeightOnlyConfig, {kind}", _quantized_base(quantize))
    yield Case("torchao", "NF4", _quantized_base(_nf4))
    for name in ("default_qat_qconfig", "default_qat_qconfig_v2", "default_dynamic_qat_qconfig"):
        yield Case("torch.ao", f"prepare_qat, {name}", _observed(_config(name), qat=True), ("1", "fsdp2"))
    for name in ("default_qconfig", "default_per_channel_qconfig", "default_dynamic_qconfig"):
        yield Case("torch.ao", f"prepare, {name}", _observed(_config(name), qat=False), ("1", "fsdp2"))
    yield Case("torch.ao", "quantize_dynamic, int8", _converted, ("1",))
