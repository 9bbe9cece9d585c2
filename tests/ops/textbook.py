"""Reference arithmetic for error bounds that do not depend on the host."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default}
# Sums and transcendental functions: vector units round them differently. What is not listed (+, ×, copies)
# rounds as IEEE 754 prescribes on every host.
FUNCTIONS = {
    aten._log_softmax.default,
    aten._log_softmax_backward_data.default,
    aten._softmax.default,
    aten._softmax_backward_data.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.exp.default,
    aten.gelu.default,
    aten.gelu_backward.default,
    aten.log.default,
    aten.native_layer_norm.default,
    aten.native_layer_norm_backward.default,
}


class Textbook(TorchDispatchMode):
    """PyTorch on a CPU with the rounding errors of textbook arithmetic in place of those of the host.

    Matrix products and sums accumulate term by term in float32, in a random order, and round once to the type
    of the result: no BLAS that keeps several partial sums has larger errors. Other functions are computed in
    float64 and rounded once. The BLAS, the threads and the vector units of the host have no influence.
    """

    def __init__(self, seed: int):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if op in PRODUCTS and not kwargs:
            *shift, left, right = args
            product = self._product(left, right)
            return (product + shift[0].float() if shift else product).to(left.dtype)
        if op is aten.sum.dim_IntList and args[0].is_floating_point() and not kwargs:
            return self._sum(*args)
        out = op(*args, **kwargs)
        if op not in FUNCTIONS:
            return out
        exact = op(*tree_map_only(Tensor, _double, args), **kwargs)
        return tree_map(lambda rough, fine: fine if fine is None else fine.to(rough.dtype), out, exact)

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        order = torch.randperm(left.shape[-1], generator=self.generator)
        columns = left.double()[..., order].unsqueeze(-1).unbind(-2)
        rows = right.double()[..., order, :].unsqueeze(-2).unbind(-3)
        return _accumulate(torch.zeros(*left.shape[:-1], right.shape[-1]), map(torch.mul, columns, rows))

    def _sum(self, x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
        terms = x.double().movedim(dims, tuple(range(len(dims)))).flatten(0, len(dims) - 1)
        order = torch.randperm(len(terms), generator=self.generator)
        total = _accumulate(torch.zeros(terms.shape[1:]), terms[order])
        for dim in sorted(dim % x.dim() for dim in dims) if keepdim else ():
            total = total.unsqueeze(dim)
        return total.to(x.dtype)


def _accumulate(total: Tensor, terms: Iterable[Tensor]) -> Tensor:
    for term in terms:
        total = (total + term).float()  # `term` is float64: the sum rounds once, as by a fused multiply-add
    return total


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x
