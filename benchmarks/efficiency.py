"""Table 3 of the paper and its appendix: parameters and cost of LinearNO and Transolver on six benchmarks."""

from dataclasses import dataclass

import torch

from benchmarks.published import BENCHMARKS, Published
from linearno.metrics.cost import flops, macs_paper_convention
from linearno.models import MODELS
from linearno.nn.protocol import Streamable


@dataclass(frozen=True)
class Cost:
    """One cell of the table: counted here, and as the paper prints it (millions, billions)."""

    params: int
    macs_paper_convention: int
    flops: int
    paper_params: float
    paper_macs: float

    @property
    def reproduces(self) -> bool:
        """Both figures round to the printed ones."""
        counted = round(self.params / 1e6, 2), round(self.macs_paper_convention / 1e9, 2)
        return counted == (self.paper_params, self.paper_macs)

    def counted(self) -> dict[str, int]:
        return {
            "params": self.params,
            "macs_paper_convention": self.macs_paper_convention,
            "flops": self.flops,
        }


def efficiency() -> dict[str, dict[str, Cost]]:
    """benchmark → model → cost. Models are built without memory, their parameters counted one by one."""
    return {
        benchmark: {model: cost(model, published) for model in published.settings}
        for benchmark, published in BENCHMARKS.items()
    }


def cost(name: str, published: Published) -> Cost:
    with torch.device("meta"):
        model = build(name, published)
    shape = model.cost_shape(published.points)
    params = sum(weight.numel() for weight in model.parameters())
    return Cost(params, macs_paper_convention(name, shape), flops(shape), *published.paper[name])


def build(name: str, published: Published) -> Streamable:
    sizes = {"coords": published.coords, "inputs": published.inputs, "outputs": published.outputs}
    built = MODELS[name].cls(**sizes, **published.settings[name])
    assert isinstance(built, Streamable)
    return built
