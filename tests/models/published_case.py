"""Comparison of a model with stored outputs and gradients of its published implementation."""

import json
import re

import numpy as np
import torch

from linearno import from_published

GRADIENT_NORM = "x/gradnorm/"
OUTPUT_TOLERANCE = 2e-5  # of the largest output
GRADIENT_TOLERANCE = (
    1e-3  # of the largest gradient of a tensor, which counts as 1e-4 of the largest of all at least
)


def real_numbers(tensor):
    """A complex number counts as two, as in the models."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


class Case:
    """A fixture: weights, inputs, output and gradients of one published module.

    `dropped` weights are left out: stored parameters that do not act. Some fixtures hold only the norm of the
    gradient of large weights.
    """

    def __init__(self, path, dropped=r"(?!)"):
        with np.load(path) as file:
            arrays = {key: file[key] for key in file.files}
        self.config = json.loads(str(arrays.pop("config")))
        norms = {key: float(arrays.pop(key)) for key in [*arrays] if key.startswith(GRADIENT_NORM)}
        self.grad_norms = {key.removeprefix(GRADIENT_NORM): value for key, value in norms.items()}
        tensors = {key: torch.from_numpy(value) for key, value in arrays.items() if value.ndim}
        tensors |= {key: value.long() for key, value in tensors.items() if value.dtype == torch.int32}
        self.out = tensors["out"]
        self.weights, self.inputs, self.grads, self.input_grads, self.extra = (
            {
                key.removeprefix(part): value
                for key, value in tensors.items()
                if key.startswith(part) and not re.search(dropped, key)
            }
            for part in ("sd/", "in/", "grad/", "gin/", "x/")
        )

    def check(self, model, call, rename):
        """Compare a forward and a backward pass; `rename` brings published weights to names of the model."""
        inputs = {key: value.clone().requires_grad_() for key, value in self.inputs.items()}
        out = call(model, inputs)
        assert (out - self.out).abs().max() <= OUTPUT_TOLERANCE * self.out.abs().max()
        out.square().mean().backward()
        blank = {key: torch.full_like(value, torch.nan) for key, value in self.weights.items()}
        expected = rename(blank | self.grads)
        ceiling = max(grad.abs().max() for grad in self.grads.values())
        compared = 0
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        for name, found in gradients.items():
            grad = expected[name]
            if grad.isnan().any():
                continue
            compared += grad.numel()
            tolerance = GRADIENT_TOLERANCE * max(grad.abs().max(), 1e-4 * ceiling)
            assert (found - grad).abs().max() <= tolerance, name
        assert compared == sum(map(real_numbers, self.grads.values()))
        norms = {key: torch.full_like(self.weights[key], value) for key, value in self.grad_norms.items()}
        for name, norm in rename(blank | norms).items():
            if not norm.isnan().any():
                expected_norm = norm.flatten()[0]
                assert (gradients[name].norm() - expected_norm).abs() <= GRADIENT_TOLERANCE * expected_norm
        for name, grad in self.input_grads.items():
            assert (inputs[name].grad - grad).abs().max() <= GRADIENT_TOLERANCE * grad.abs().max(), name

    def check_published(self, call, **hints):
        self.check(
            from_published(self.weights, **hints).eval(),
            call,
            lambda weights: dict(from_published(weights, **hints).named_parameters()),
        )
