"""Compile all kernels for an H200 without a GPU and print their names.

Usage: `python compile_run.py bfloat16 float32`. The compiler is stricter than Triton's interpreter.
"""

import sys

import torch
from no_device import LOADED_KERNELS

from linearno.ops.triton import conv, gather, loss, mix, mlp, norm, scatter, tiling
from linearno.ops.triton import mlp_norm as branch
from linearno.ops.triton.tiling import Meshes

B, N, H, D, M = 2, 100, 2, 16, 24  # the last tile and the slices need padding


def patch_launch_options():
    for module in (branch, conv, gather, mix, mlp, norm, scatter, tiling):
        if hasattr(module, "dependent_launch"):
            module.dependent_launch = lambda device: {"DEPENDENT": True, "launch_pdl": True}
        if hasattr(module, "product_precision"):
            module.product_precision = lambda x, exact="ieee": exact


def attention(dtype):
    x, value = torch.zeros(2, B, N, H, D, dtype=dtype)
    weight, scale, bias, linear = torch.zeros(D, M), torch.ones(H), torch.zeros(M), torch.zeros(D, D)
    slices, sums = torch.zeros(B, H, M, D), torch.zeros(B, H, M)
    meshes = Meshes.of(x, None, 0)
    for score, points, offset, project in (
        ("linear", x, None, linear),
        ("log_softmax", value, bias, None),
    ):
        value_is_x, d_sum = points is x, None if project is not None else sums
        gather.gather_forward(x, points, weight, scale, offset, project, score, value_is_x, meshes)
        gather.gather_backward(
            x, points, weight, scale, offset, project, sums, sums, slices, d_sum, slices, x, score,
            value_is_x, False, meshes,
        )  # fmt: skip
        _, log_sum = scatter.scatter_forward(x, weight, scale, offset, slices, True, meshes)
        scatter.scatter_backward(x, weight, scale, offset, slices, log_sum, x, False, meshes)
    mix.mix_forward(slices[0], None, None, linear, linear, linear, 0.0, True)
    mix.mix_backward(slices[0], None, None, linear, linear, linear, slices[0], 0.0, True)


def layers(dtype):
    rows, width = B * N, H * D
    h, moments, gain = torch.zeros(rows, width, dtype=dtype), torch.zeros(rows, 2), torch.ones(width)
    square = torch.zeros(width, width, dtype=dtype)
    split = dtype == torch.bfloat16
    low_bits = h.to(torch.int8) if split else None
    norm.norm_forward(h, low_bits, h, gain, gain, gain, 1e-5, dtype, split)
    norm.norm_backward(h, moments, gain, h, h, (dtype, dtype), True)
    _, z = mlp.mlp_forward(h, square, gain, square, gain, True)
    mlp.gelu_backward_(z, h)
    if split:
        for inputs, hidden, outputs in ((200, 160, 200), (200, 60, 200), (width, 160, width)):
            weights = torch.zeros(hidden, inputs, dtype=dtype), torch.zeros(outputs, hidden, dtype=dtype)
            x, b1, b2 = torch.zeros(rows, inputs, dtype=dtype), torch.zeros(hidden), torch.zeros(outputs)
            mlp.mlp_forward(x, weights[0], b1, weights[1], b2, True)
            mlp.mlp_forward(
                x.float(), weights[0].float(), b1, weights[1], b2, True
            )  # float32 inputs, bf16 outputs: the lift
        branch.branch_forward(h, h, low_bits, gain, gain, gain, 1e-5, (square, gain), square)
        branch.branch_forward(h, h, low_bits, gain, gain, gain, 1e-5, None, square)
        branch.branch_backward(h, moments, gain, h, h, h, z, square, square, None)
    conv.flip_taps(torch.zeros(width, width, 3, 3, dtype=dtype))
    conv.add_bias_(h, gain)
    fields = torch.zeros(B, N, 1)
    _, factors = loss.loss_forward(fields, fields, (10, 10), 0.1)
    loss.loss_backward(fields, fields, factors, torch.ones(B), (10, 10))


if __name__ == "__main__":
    patch_launch_options()
    for name in sys.argv[1:]:
        attention(getattr(torch, name))
        layers(getattr(torch, name))
    sys.stdout.write(" ".join(sorted(set(LOADED_KERNELS))) + "\n")
