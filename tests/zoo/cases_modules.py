"""Modules and what trains beside them: timm, torchmetrics, geoopt, ema_pytorch, peft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch

from tests.zoo.cases_optimizers import Net, net
from tests.zoo.training import WIDTH, Case, Layout, Training


@lru_cache(maxsize=None)
def _operators() -> Any:
    """timm imports torchvision, whose compiled operators are of a torch with CUDA: declared, they need not be there."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def timm() -> Any:
    _operators()
    import timm as package
    import timm.optim
    import timm.scheduler
    import timm.utils

    return package


def adamw(model: Any) -> Any:
    return torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=1e-2)


# --- timm -------------------------------------------------------------------------------------------------------


def _images(name: str, **options: Any) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        torch.manual_seed(seed)
        model = timm().create_model(name, num_classes=4, **options)
        layout.divide(model)

        def loss(batch: Any) -> Any:
            return model(torch.rand(2, 3, 32, 32)).square().mean()

        return Training(model, adamw(model), loss=loss)

    return make


def _scheduled(name: str, **options: Any) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        model = net(seed, layout)
        optimizer = adamw(model)
        scheduler = getattr(timm().scheduler, name)(optimizer, **options)
        return Training(
            model, optimizer, {"scheduler": scheduler}, after_step=lambda number, loss: scheduler.step(number + 1, loss)
        )

    return make


def _averaged_by_timm(name: str) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        model = net(seed, layout)
        average = getattr(timm().utils, name)(model, decay=0.9)
        return Training(
            model, adamw(model), {"average": average}, after_step=lambda number, loss: average.update(model)
        )

    return make


# --- torchmetrics -----------------------------------------------------------------------------------------------


def _measured(make_metric: Callable[[Any], Any], *, labels: bool) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        _operators()
        import torchmetrics

        model = net(seed, layout)
        metric = make_metric(torchmetrics)
        metric.persistent(True)
        optimizer = adamw(model)

        def update(batch: Any, number: int) -> float:
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scores = torch.softmax(batch[:, :4], 1)
            if labels:
                metric.update(scores, torch.randint(4, (len(batch),)))
            else:
                metric.update(batch.flatten(), batch.flatten().roll(1))
            return float(loss.detach())

        return Training(model, optimizer, {"metric": metric}, update=update)

    return make


_CLASSIFICATION: dict[str, Callable[[Any], Any]] = {
    "MulticlassAccuracy": lambda metrics: metrics.classification.MulticlassAccuracy(4),
    "MulticlassAUROC, lists": lambda metrics: metrics.classification.MulticlassAUROC(4),
    "MulticlassAUROC, thresholds": lambda metrics: metrics.classification.MulticlassAUROC(4, thresholds=8),
    "MulticlassConfusionMatrix": lambda metrics: metrics.classification.MulticlassConfusionMatrix(4),
    "MulticlassCalibrationError": lambda metrics: metrics.classification.MulticlassCalibrationError(4),
}
_REGRESSION: dict[str, Callable[[Any], Any]] = {
    "MeanSquaredError": lambda metrics: metrics.MeanSquaredError(),
    "PearsonCorrCoef": lambda metrics: metrics.PearsonCorrCoef(),
    "SpearmanCorrCoef, lists": lambda metrics: metrics.SpearmanCorrCoef(),
    "MetricCollection": lambda metrics: metrics.MetricCollection([metrics.MeanSquaredError(), metrics.R2Score()]),
}


# --- geoopt -----------------------------------------------------------------------------------------------------


class OnManifold(Net):
    """`point` is a parameter of geoopt's."""

    point: Any

    def forward(self, batch: Any) -> Any:
        return super().forward(batch) @ self.point


class OnBall(Net):
    """`ball` learns its curvature."""

    ball: Any

    def forward(self, batch: Any) -> Any:
        return self.ball.expmap0(0.1 * super().forward(batch))


def _on_manifold(name: str, optimizer: str, **options: Any) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        import geoopt

        torch.manual_seed(seed)
        manifold = getattr(geoopt, name)()
        model = OnManifold()
        point = manifold.random(WIDTH, WIDTH) if name != "Lorentz" else manifold.random_normal(WIDTH, WIDTH)
        model.point = geoopt.ManifoldParameter(point, manifold=manifold)
        layout.divide(model)
        made = getattr(geoopt.optim, optimizer)(model.parameters(), lr=1e-2, **options)
        return Training(model, made)

    return make


def _learned_curvature(seed: int, layout: Layout) -> Training:
    import geoopt

    torch.manual_seed(seed)
    model = OnBall()
    model.ball = geoopt.PoincareBall(c=1.0, learnable=True)
    layout.divide(model)
    return Training(model, geoopt.optim.RiemannianAdam(model.parameters(), lr=1e-2, amsgrad=True))


# --- ema_pytorch ------------------------------------------------------------------------------------------------


def _averaged(name: str, **options: Any) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        import ema_pytorch

        model = net(seed, layout)
        average = getattr(ema_pytorch, name)(model, **options)
        return Training(model, adamw(model), {"average": average}, after_step=lambda number, loss: average.update())

    return make


# --- peft -------------------------------------------------------------------------------------------------------


def _adapted(name: str, **options: Any) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        import peft

        torch.manual_seed(seed)
        config = getattr(peft, name)(target_modules=["first", "last"], **options)
        model = peft.get_peft_model(Net(), config)
        if layout.is_sharded:
            from torch.distributed.fsdp import fully_shard

            fully_shard(model, mesh=layout.mesh["dp"])
        training = Training(model, adamw(model))
        if name == "AdaLoraConfig":  # its ranks are cut between the steps
            update = model.base_model.update_and_allocate
            training.after_step = lambda number, loss: update(number + 1)
        return training

    return make


_ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", {"r": 4}),
    "LoRA with rsLoRA and dropout": ("LoraConfig", {"r": 4, "use_rslora": True, "lora_dropout": 0.1}),
    "DoRA": ("LoraConfig", {"r": 4, "use_dora": True}),
    "AdaLoRA": ("AdaLoraConfig", {"init_r": 6, "target_r": 2, "total_step": 20, "tinit": 1, "tfinal": 5, "deltaT": 1}),
    "IA3": ("IA3Config", {"feedforward_modules": ["last"]}),
    "LoHa": ("LoHaConfig", {"r": 4}),
    "LoKr": ("LoKrConfig", {"r": 4}),
    "OFT": ("OFTConfig", {"oft_block_size": 4}),
    "BOFT": ("BOFTConfig", {"boft_block_size": 4}),
    "VeRA": ("VeraConfig", {"r": 4}),
    "FourierFT": ("FourierFTConfig", {"n_frequency": 16}),
    "HRA": ("HRAConfig", {"r": 4}),
    "MiSS": ("MissConfig", {"r": 4}),
    "RandLoRA": ("RandLoraConfig", {"r": 4}),
}


def cases() -> Iterator[Case]:
    whole = ("1", "fsdp2")
    for name in ("resnet10t", "test_vit", "test_efficientnet", "test_convnext", "test_resnet"):
        options = {"img_size": 32} if name == "test_vit" else {}
        yield Case("timm", name, _images(name, **options), whole)
    cosine = {"t_initial": 8, "warmup_t": 2, "cycle_limit": 3}
    yield Case("timm", "CosineLRScheduler", _scheduled("CosineLRScheduler", **cosine), whole)
    yield Case("timm", "PlateauLRScheduler", _scheduled("PlateauLRScheduler", patience_t=1, warmup_t=2), whole)
    yield Case("timm", "PolyLRScheduler", _scheduled("PolyLRScheduler", t_initial=8, noise_range_t=(2, 8)), whole)
    yield Case("timm", "ModelEmaV2", _averaged_by_timm("ModelEmaV2"), ("1",))
    yield Case("timm", "ModelEmaV3", _averaged_by_timm("ModelEmaV3"), ("1",))
    for name, metric in _CLASSIFICATION.items():
        yield Case("torchmetrics", name, _measured(metric, labels=True), ("1", "fsdp2"))
    for name, metric in _REGRESSION.items():
        yield Case("torchmetrics", name, _measured(metric, labels=False), ("1", "fsdp2"))
    for name in ("Sphere", "Stiefel", "PoincareBall", "Lorentz"):
        yield Case("geoopt", f"{name}, RiemannianAdam", _on_manifold(name, "RiemannianAdam"), whole)
        yield Case("geoopt", f"{name}, RiemannianSGD", _on_manifold(name, "RiemannianSGD", momentum=0.9), whole)
    yield Case("geoopt", "PoincareBall, learned curvature", _learned_curvature, whole)
    slow = {"beta": 0.9, "update_every": 1, "update_after_step": 1}
    yield Case("ema_pytorch", "EMA", _averaged("EMA", **slow), ("1",))
    without = {**slow, "include_online_model": False}
    yield Case("ema_pytorch", "EMA without the online model", _averaged("EMA", **without), ("1",))
    yield Case("ema_pytorch", "KarrasEMA", _averaged("KarrasEMA", sigma_rel=0.05, update_every=1), ("1",))
    for name, (config, options) in _ADAPTERS.items():
        yield Case("peft", name, _adapted(config, **options), whole)
