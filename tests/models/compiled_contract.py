"""Compile every model as one graph: `python compiled_contract.py`. Prints a JSON object of failures by name.

Run by itself: the checks of shapes in tests are no code for a compiler.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.models.contract_models import CASES, POINTS, build, question

# models with random numbers, running means or norms of heads in training
ALSO_IN_TRAINING = {"galerkin", "graphunet", "ono", "transolver++"}


def failure(case: str) -> str:
    """Why the model does not compile as one graph to what it computes otherwise; empty if it does."""
    modes = (False, True) if case.partition(",")[0] in ALSO_IN_TRAINING else (False,)
    return next((found for training in modes if (found := _failure(case, training))), "")


def _failure(case: str, training: bool) -> str:
    torch._dynamo.reset()
    model = build(case).train(training)
    args, more = question(model, POINTS)
    try:
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager" if training else "eager")
        outputs = []
        for network in (compiled, model):
            torch.manual_seed(0)
            outputs.append(network(*args, **more))
        found, expected = outputs
        if training:
            found.sum().backward()
    except Exception as error:  # a compiler raises anything
        return f"{type(error).__name__}: {error}"[:500]
    return "" if torch.allclose(found, expected, rtol=1e-4, atol=1e-5) else "other values"


if __name__ == "__main__":
    json.dump({case: message for case in CASES if (message := failure(case))}, sys.stdout)
