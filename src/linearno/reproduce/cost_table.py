"""Parameters and cost of LinearNO and Transolver on six benchmarks: Table 3 and appendix of the paper."""

from dataclasses import dataclass

import torch

from linearno.core.errors import UserError
from linearno.metrics.cost import Shape, flops, linear_macs
from linearno.models import MODELS
from linearno.nn.protocol import Streamable
from linearno.reproduce.paper_settings import BENCHMARKS, Published


@dataclass(frozen=True)
class Cost:
    """Counted cost of a model on a benchmark, and the paper's figures (parameters in 10⁶, MACs in 10⁹)."""

    params: int
    macs_paper_convention: int
    flops: int
    paper_params: float
    paper_macs: float

    @property
    def reproduces(self) -> bool:
        """Whether both counts round to the paper's figures."""
        rounded = round(self.params / 1e6, 2), round(self.macs_paper_convention / 1e9, 2)
        return rounded == (self.paper_params, self.paper_macs)

    def counts(self) -> dict[str, int]:
        return {
            "params": self.params,
            "macs_paper_convention": self.macs_paper_convention,
            "flops": self.flops,
        }


def efficiency() -> dict[str, dict[str, Cost]]:
    """Costs by benchmark and model. Models are built on the meta device."""
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
    """The paper's FLOPs: the total of the tool thop, which omits the products of attention.

    thop counts 4 operations per value of a layer norm, and 3m − 1 per row of length m of a softmax module,
    which only Transolver uses.
    """
    if model not in ("linearno", "transolver"):
        raise UserError(f"the paper has no cost of {model!r}; choose linearno or transolver")
    norms = 4 * s.points * s.width * (2 * s.depth + 1)
    rows = s.depth * s.heads * (s.points + s.slices) if model == "transolver" else 0
    return linear_macs(s) + norms + rows * (3 * s.slices - 1)


def build(name: str, published: Published) -> Streamable:
    sizes = {"coords": published.coords, "inputs": published.inputs, "outputs": published.outputs}
    model = MODELS[name].cls(**sizes, **published.settings[name])
    assert isinstance(model, Streamable)
    return model
