"""Adam and AdamW on flat tensors: kernels for the gradient norm and for the clipped step."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _square_sums(grad_ptr, part_ptr, size, BLOCK: tl.constexpr):
    """Σ g² of each block."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(grad_ptr + i, mask=i < size, other=0.0)
    tl.store(part_ptr + tl.program_id(0), tl.sum(grad * grad, axis=0))


@triton.jit
def _gradient_norm(part_ptr, norm_ptr, parts, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, parts, BLOCK):
        total += tl.load(part_ptr + start + i, mask=start + i < parts, other=0.0)
    tl.store(norm_ptr, tl.sqrt(tl.sum(total, axis=0)))


@triton.jit
def _adam(
    weight_ptr, grad_ptr, first_ptr, second_ptr, norm_ptr, settings_ptr, size,
    clip, eps, decay,
    CLIP: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of Adam (L2 decay) or AdamW (DECOUPLED).

    `settings`: learning rate, β₁, β₂, 1 − β₁ᵗ and 1 − β₂ᵗ, which change from step to step.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = i < size
    lr, beta1, beta2 = tl.load(settings_ptr), tl.load(settings_ptr + 1), tl.load(settings_ptr + 2)
    correct1, correct2 = tl.load(settings_ptr + 3), tl.load(settings_ptr + 4)
    weight = tl.load(weight_ptr + i, mask=valid)
    grad = tl.load(grad_ptr + i, mask=valid)
    if CLIP:
        grad *= tl.minimum(clip / (tl.load(norm_ptr) + 1e-6), 1.0)
    if DECOUPLED:
        weight -= lr * decay * weight
    else:
        grad += decay * weight
    first = tl.load(first_ptr + i, mask=valid)
    first += (1 - beta1) * (grad - first)
    second = beta2 * tl.load(second_ptr + i, mask=valid) + (1 - beta2) * grad * grad
    weight -= lr / correct1 * first / (tl.sqrt(second) / tl.sqrt(correct2) + eps)
    tl.store(weight_ptr + i, weight, mask=valid)
    tl.store(first_ptr + i, first, mask=valid)
    tl.store(second_ptr + i, second, mask=valid)


def adam_step(
    weight: Tensor, grad: Tensor, first: Tensor, second: Tensor, settings: Tensor,
    *, clip: float | None, eps: float, decay: float, decoupled: bool,
) -> Tensor:  # fmt: skip
    """Update flat float32 tensors in place; return the norm of the gradient before clipping.

    `settings` as in `_adam`; `decay` is the weight decay, decoupled as in AdamW if `decoupled`.
    """
    size = weight.numel()
    blocks = -(-size // BLOCK)
    parts, norm = weight.new_empty(blocks), weight.new_empty(())
    _square_sums[(blocks,)](grad, parts, size, BLOCK, num_warps=4)
    _gradient_norm[(1,)](parts, norm, blocks, 1024, num_warps=4)
    _adam[(blocks,)](
        weight, grad, first, second, norm, settings, size, clip or 0.0, eps, decay,
        clip is not None, decoupled, BLOCK, num_warps=4,
    )  # fmt: skip
    return norm
