"""Every case of the zoo, in the order of the table."""

from __future__ import annotations

from tests.zoo import cases_modules, cases_optimizers, cases_quantized, cases_torch
from tests.zoo.training import Case


def every_case() -> list[Case]:
    return [*cases_quantized.cases(), *cases_modules.cases(), *cases_optimizers.cases(), *cases_torch.cases()]
