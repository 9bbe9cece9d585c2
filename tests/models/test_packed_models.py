"""Meshes of different sizes in one call are answered, and learnt from, as each would be by itself."""

import pytest
import torch

from linearno import LinearNO, Transolver
from linearno.core.errors import UserError
from linearno.ops import backend
from linearno.ops.ragged import offsets_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = [5, 1, 90, 14]
POSITIONS = {"unified": {"ref": 3, "place": "positions", "box": [[0, 1], [0, 1]]}}
KINDS = {
    "LinearNO": (LinearNO, {}),
    "LinearNO with φ and ψ over the other axis": (LinearNO, {"phi": "N", "psi": "M"}),
    "LinearNO told a time": (LinearNO, {"time": True, "merge_layers": 2}),
    "LinearNO with a unified position": (LinearNO, POSITIONS),
    "LinearNO that mixes": (LinearNO, {"tied": True, "psi": "phi", "mix": "attention"}),
    "Transolver": (Transolver, {}),
}


def build(kind, dtype=torch.float64, inputs=1, depth=2):
    torch.manual_seed(0)
    model, settings = KINDS[kind]
    made = model(coords=2, inputs=inputs, outputs=2, width=16, depth=depth, heads=2, slices=5, **settings)
    for weight in made.parameters():
        if weight.dim() > 1:  # as drawn they are so small that some gradients drown in rounding
            torch.nn.init.normal_(weight, std=0.3)
    return made.to(DEVICE, dtype)


def ask(kind, dtype=torch.float64, inputs=1):
    """Coordinates, inputs and what else the model is told, mesh by mesh: (1, N, ·)."""
    torch.manual_seed(1)
    told = {"LinearNO told a time": "time", "LinearNO with a unified position": "positions"}.get(kind)
    asked = []
    for size in SIZES:
        coords, values = (torch.rand(1, size, c, dtype=dtype, device=DEVICE) for c in (2, inputs))
        more = {"time": torch.rand(1, 1, dtype=dtype, device=DEVICE), "positions": coords}
        asked.append((coords, values if inputs else None, {told: more[told]} if told else {}))
    return asked


def pack(asked):
    """The same in one call; a time has an entry for each mesh."""
    coords = torch.cat([each[0] for each in asked], dim=1)
    inputs = None if asked[0][1] is None else torch.cat([each[1] for each in asked], dim=1)
    more = {
        name: torch.cat([each[2][name] for each in asked], dim=0 if name == "time" else 1)
        for name in asked[0][2]
    }
    return coords, inputs, more | {"segments": offsets_of([each[0].shape[1] for each in asked])}


def one_by_one(model, asked):
    return torch.cat([model(coords, inputs, **more) for coords, inputs, more in asked], dim=1)


def gradients(model, out):
    cotangent = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view(out.shape)
    weights = dict(model.named_parameters())
    found = torch.autograd.grad(out, list(weights.values()), cotangent, allow_unused=True)
    return {name: grad for name, grad in zip(weights, found, strict=True) if grad is not None}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_batch_is_its_meshes_in_value_and_every_gradient(kind, recompute):
    model, asked = build(kind), ask(kind)
    coords, inputs, more = pack(asked)
    apart = one_by_one(model, asked)
    model.recompute = recompute
    packed = model(coords, inputs, **more)
    torch.testing.assert_close(packed, apart)
    found, true = gradients(model, packed), gradients(model, apart)
    assert found.keys() == true.keys()
    torch.testing.assert_close(found, true)
    with torch.no_grad():
        torch.testing.assert_close(model(coords, inputs, **more), apart.detach())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LinearNO", "Transolver"])
def test_with_kernels_too(kind):
    exact, model = (build(kind, dtype, depth=1) for dtype in (torch.float64, torch.float32))
    true = one_by_one(exact, ask(kind))
    coords, inputs, more = pack([(c.float(), a.float(), {}) for c, a, _ in ask(kind)])
    with backend("kernel"):
        packed = model(coords, inputs, **more)
        found = gradients(model, packed)
        with torch.no_grad():
            torch.testing.assert_close(model(coords, inputs, **more), packed.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(packed.double(), true, rtol=1e-4, atol=1e-5)
    for name, grad in gradients(exact, true).items():
        atol = 2e-4 * grad.abs().max().item()
        torch.testing.assert_close(found[name].double(), grad, rtol=1e-3, atol=atol)


def test_without_inputs_too():
    model, asked = build("LinearNO", inputs=0), ask("LinearNO", inputs=0)
    coords, inputs, more = pack(asked)
    torch.testing.assert_close(model(coords, inputs, **more), one_by_one(model, asked))


@pytest.mark.parametrize("kind", ["LinearNO", "Transolver"])
def test_permuting_the_meshes_permutes_the_answers(kind):
    model, asked, order = build(kind), ask(kind), [2, 0, 3, 1]
    coords, inputs, more = pack(asked)
    answers = model(coords, inputs, **more).split(SIZES, dim=1)
    coords, inputs, more = pack([asked[i] for i in order])
    permuted = model(coords, inputs, **more)
    torch.testing.assert_close(permuted, torch.cat([answers[i] for i in order], dim=1))


def test_long_meshes_worked_on_block_by_block_answer_the_same(monkeypatch):
    """Without gradients points are taken a block at a time: never over the border of two meshes."""
    model, asked = build("LinearNO"), ask("LinearNO")
    coords, inputs, more = pack(asked)
    expected = one_by_one(model, asked).detach()
    monkeypatch.setattr(
        "linearno.nn.layers.BLOCK_ELEMENTS", {DEVICE.type: 1}
    )  # then 64 points, the least there are
    with torch.no_grad():
        torch.testing.assert_close(model(coords, inputs, **more), expected)


@pytest.mark.parametrize("kind", ["LinearNO", "Transolver", "LinearNO told a time"])
def test_packed_meshes_are_encoded_once_and_queried_anywhere(kind):
    model, asked = build(kind), ask(kind)
    coords, inputs, more = pack(asked)
    states = model.encode(coords, inputs, **more)
    torch.testing.assert_close(model.query(coords, states, inputs, **more), model(coords, inputs, **more))
    several = [torch.rand(4, 6, c, dtype=torch.float64, device=DEVICE) for c in (2, 1)]
    time = {"time": more["time"]} if "time" in more else {}
    answers = model.query(several[0], states, several[1], **time)  # six points of each mesh, as a plain batch
    for i, (coords, inputs, told) in enumerate(asked):
        own = model.encode(coords, inputs, **told)
        there = [part[i : i + 1] for part in several]
        torch.testing.assert_close(answers[i : i + 1], model.query(there[0], own, there[1], **told))


def test_a_rollout_of_packed_meshes_is_that_of_each():
    model = LinearNO(coords=2, inputs=2, outputs=1, width=16, depth=1, heads=2, slices=5).double().to(DEVICE)
    frames = ask("LinearNO", inputs=2)
    coords, inputs, more = pack(frames)
    apart = [model.rollout(c, a, 3) for c, a, _ in frames]
    torch.testing.assert_close(model.rollout(coords, inputs, 3, **more), torch.cat(apart, dim=1))


@pytest.mark.parametrize(
    "settings", [{"stem": "conv", "grid": (10, 11)}, {"unified": {"ref": 3}, "grid": (10, 11)}]
)
def test_a_model_tied_to_a_grid_takes_no_packed_meshes(settings):
    model = LinearNO(coords=2, inputs=1, outputs=1, width=16, depth=1, heads=2, slices=5, **settings)
    with pytest.raises(UserError, match="tied to a grid takes no packed meshes"):
        model(torch.rand(1, 110, 2), torch.rand(1, 110, 1), segments=offsets_of([10, 100]))


def test_an_empty_mesh_or_a_second_batch_axis_is_refused():
    model = build("LinearNO", torch.float32).cpu()
    with pytest.raises(UserError, match="segment 1 has 0 points"):
        model(torch.rand(1, 8, 2), torch.rand(1, 8, 1), segments=offsets_of([3, 0, 5]))
    with pytest.raises(UserError, match=r"one batch, coords \(1, T, X\)"):
        model(torch.rand(2, 8, 2), torch.rand(2, 8, 1), segments=offsets_of([3, 5]))
