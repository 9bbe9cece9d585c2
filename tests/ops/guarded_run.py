"""Run training steps in Triton's interpreter with tensors adjacent to protected pages of memory.

`python guarded_run.py end` puts a protected page after each tensor, `start` before it. A kernel that accesses
memory outside of a tensor crashes the process.
"""

import ctypes
import mmap
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

PAGE, PROT_NONE, MAPPINGS = mmap.PAGESIZE, 0, []
libc = ctypes.CDLL(None, use_errno=True)


def guarded(like: torch.Tensor, shape=None, dtype=None) -> torch.Tensor:
    """A tensor next to a protected page, with the given shape or the shape and strides of `like`."""
    dtype = dtype or like.dtype
    dense = shape is None and like.numel() == sum(
        (size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True)
    ) + bool(like.numel())
    shape = like.shape if shape is None else torch.Size(shape)
    count = shape.numel() * dtype.itemsize
    if not count:
        return EMPTY(shape, dtype=dtype)
    pages = -(-count // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    MAPPINGS.append(memory)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        assert libc.mprotect(ctypes.c_void_p(base + page * PAGE), PAGE, PROT_NONE) == 0
    first = PAGE if SIDE == "start" else (pages + 1) * PAGE - count
    flat = torch.frombuffer(memory, dtype=dtype, count=shape.numel(), offset=first)
    return flat.as_strided(shape, like.stride()) if dense else flat.view(shape)


def new_empty(like, *size, dtype=None, **more):
    size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return guarded(like, size, dtype)


def empty_like(like, *, dtype=None, **more):
    return guarded(like, None, dtype)


def steps(model_class, count, **settings):
    """One optimiser step of a small model in float32 and one in bf16."""
    from linearno.data import Batch
    from linearno.ops import WeightCache, backend
    from linearno.training import LossConfig
    from linearno.training.flat_adam import FlatAdam
    from linearno.training.losses import make_loss

    grid = settings.get("grid")
    model = model_class(coords=2, inputs=1, outputs=1, depth=1, **settings)
    with torch.no_grad():
        for weight in model.parameters():
            weight.data = guarded(weight).copy_(weight)
    optimizer = FlatAdam(
        model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, decoupled=True, clip=1.0
    )
    loss_of = make_loss(LossConfig(gradient_weight=0.1 if grid else 0.0), grid)
    for precision in (torch.float32, torch.bfloat16):
        coords, inputs, truth = (guarded(torch.empty(2, count, n)).uniform_() for n in (2, 1, 1))
        use_bf16 = precision == torch.bfloat16
        cache = WeightCache(model.parameters(), precision)
        with backend("kernel"), cache.activate():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=use_bf16):
                out = model(coords, inputs)
            loss = loss_of(guarded(out).copy_(out), Batch(coords, inputs, truth))
            loss.backward()
            optimizer.prepare()
            optimizer.step()
        assert loss.isfinite()
        assert optimizer.norm.isfinite()


if __name__ == "__main__":
    SIDE, EMPTY = sys.argv[1], torch.empty
    torch.Tensor.new_empty, torch.empty_like = new_empty, empty_like
    from linearno import LinearNO, Transolver

    torch.manual_seed(0)
    for points, width, heads, slices in ((33, 24, 3, 6), (1, 17, 1, 1), (65, 129, 3, 33)):
        steps(LinearNO, points, width=width, heads=heads, slices=slices, merge_layers=2)
    steps(Transolver, 35, width=24, heads=3, slices=6, stem="conv", grid=(5, 7))
    sys.stdout.write(f"{len(MAPPINGS)} tensors\n")
