"""Table 3 of the paper and its appendix: parameters and cost of LinearNO and Transolver on six benchmarks."""

from dataclasses import dataclass

import torch

from benchmarks.published import BENCHMARKS, Published
from linearno.core.errors import UserError
from linearno.metrics.cost import Shape, flops, linear_macs
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


def macs_paper_convention(model: str, s: Shape) -> int:
    """What the paper's tables call FLOPs: thop's total, which leaves out the products of the attention.

    thop counts four operations for each value of a layer norm, and 3m − 1 for each row of m of a softmax
    module, which only Transolver has.
    """
    if model not in ("linearno", "transolver"):
        raise UserError(f"the paper prints no cost of {model!r}")
    norms = 4 * s.points * s.width * (2 * s.depth + 1)
    rows = s.depth * s.heads * (s.points + s.slices) if model == "transolver" else 0
    return linear_macs(s) + norms + rows * (3 * s.slices - 1)


def build(name: str, published: Published) -> Streamable:
    sizes = {"coords": published.coords, "inputs": published.inputs, "outputs": published.outputs}
    built = MODELS[name].cls(**sizes, **published.settings[name])
    assert isinstance(built, Streamable)
    return built
