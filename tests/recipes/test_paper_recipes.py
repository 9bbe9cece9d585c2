"""Every cell of Table 1 and Appendix E is a recipe, and so are the successors; built without files."""

import pytest
import torch

from linearno.data import DATASETS
from linearno.models import MODELS, build_model
from linearno.nn.protocol import SelfFitting
from linearno.recipes import recipe
from linearno.reproduce import published
from linearno.reproduce.items import RECONSTRUCTION, SUCCESSORS

TABLE1 = [
    (benchmark, model)
    for model, row in published.TABLE1.items()
    for benchmark, value in zip(published.STANDARD, row, strict=True)
    if value is not None
]
SUCCESSOR_CELLS = [
    (benchmark, model) for model in (*SUCCESSORS, "pod-gp") for benchmark in published.STANDARD
]
APPENDIX_E = [(rate, model) for rate in published.RATES for model in RECONSTRUCTION.values()]


CELLS = [*TABLE1, *SUCCESSOR_CELLS, *APPENDIX_E]
FEWEST = 7e4  # parameters of any of them


@pytest.mark.parametrize("model", sorted({model for _, model in CELLS}))
def test_every_cell_builds_the_model_of_its_row(model):
    for benchmark in (benchmark for benchmark, name in CELLS if name == model):
        config = recipe(benchmark, model)
        config.require_task_fits_model()
        spec = config.task.spec(DATASETS[config.data.name].layout(config.data).spec)
        with torch.device("meta"):
            built = build_model(config.model, spec)
        assert type(built) is MODELS[config.model.name].cls
        parameters = sum(weight.numel() for weight in built.parameters())
        assert parameters > FEWEST or isinstance(built, SelfFitting), (benchmark, parameters)


def test_the_paper_leaves_five_cells_out():
    """FNO without a grid or on body-fitted ones, and FactFormer without a grid."""
    assert len(TABLE1) == len(published.TABLE1) * len(published.STANDARD) - 5
