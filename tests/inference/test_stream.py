"""A mesh in chunks of points gives what one call gives, whatever the chunks and wherever features wait."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from linearno import LinearNO, Transolver, stream
from linearno.core.byte_sizes import format_bytes, parse_bytes
from linearno.core.errors import UserError
from linearno.data.scaler import Scaler, Standardise
from linearno.inference.streaming import Streamer, plan
from linearno.inference.streaming import executor as passes
from linearno.inference.streaming import memory_plan as planning
from linearno.inference.streaming.storage import OnDisk

SMALL = {"width": 24, "depth": 3, "heads": 3, "slices": 5}
ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-5}
KEEPS = ["host", "disk", "recompute"]


def lively(model):
    """Weights that make slices differ: drawn as published they hardly do."""
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.5)
    return model


def make(kind=LinearNO, dtype=torch.float64, **settings):
    return lively(kind(coords=2, inputs=1, outputs=2, **SMALL | settings)).to(dtype)


def question(points=41, samples=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    size = (samples, points)
    return tuple(torch.rand(*size, c, generator=generator, dtype=torch.float64).to(dtype) for c in (2, 1))


def assert_same(found, whole):
    assert found.shape == whole.shape
    assert (found - whole).abs().max() <= ROUNDING[whole.dtype] * whole.abs().max()


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("chunk", [1, 7, 32, 41])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", [LinearNO, Transolver])
def test_chunks_of_any_size_give_what_one_call_gives(kind, dtype, chunk, keep):
    model, (coords, inputs) = make(kind, dtype), question(dtype=dtype)
    with torch.no_grad():
        whole = model(coords, inputs)
    before = coords.clone(), inputs.clone()
    assert_same(stream(model, coords, inputs, chunk=chunk, keep=keep), whole)
    torch.testing.assert_close((coords, inputs), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"tied": True, "psi": "phi", "mix": "attention"},
        {"psi": "M"},
        {"merge_layers": 2, "mlp_ratio": 3, "temperature": None},
        {"unified": {"ref": 3, "place": "coords"}},
    ],
    ids=str,
)
def test_every_pointwise_setting_of_the_family_streams(settings):
    model, (coords, inputs) = make(**settings), question()
    with torch.no_grad():
        assert_same(stream(model, coords, inputs, chunk=13), model(coords, inputs))


def test_time_and_positions_go_along():
    model = make(time=True, unified={"ref": 3, "place": "positions", "box": [[-2, 4], [-1.5, 1.5]]})
    (coords, inputs), when = question(), torch.tensor([[0.2], [0.9]], dtype=torch.float64)
    positions = 3 * coords - 1
    with torch.no_grad():
        whole = model(coords, inputs, time=when, positions=positions)
    assert_same(stream(model, coords, inputs, time=when, positions=positions, chunk=13), whole)


class Remembered:
    """Work that was done before is done again as it was, with other tensors: as a recording does it."""

    def __init__(self):
        self.works = {}

    def __call__(self, key, work, *given):
        known = self.works.setdefault((key, *(part.shape for part in given)), work)
        return known(*(part.clone() for part in given))


@pytest.mark.parametrize("keep", ["host", "recompute"])
@pytest.mark.parametrize("settings", [{}, {"time": True}], ids=str)
def test_a_pass_depends_on_nothing_but_what_it_is_given(monkeypatch, keep, settings):
    recordings = Remembered()
    monkeypatch.setattr(passes, "graph_cache_of", lambda model, elements: recordings)
    model = make(**settings)
    streamer = Streamer(model, keep=keep, chunk=13)
    for turn in range(3):
        coords, inputs = (part * (1 + turn) for part in question())
        when = {"time": torch.full((2, 1), 0.3 * turn, dtype=torch.float64)} if settings else {}
        with torch.no_grad():
            whole = model(coords, inputs, **when)
        assert_same(streamer.forward(coords, inputs, **when), whole)
        states = streamer.encode(coords, inputs, **when)
        assert_same(streamer.query(coords, states, inputs, **when), whole)
    sizes_of_chunks, ways = 2, 2  # to encode and to ask
    assert len(recordings.works) <= sizes_of_chunks * ways * (len(model.blocks) + 1)


def test_what_was_recorded_is_not_used_once_the_scales_lie_elsewhere(monkeypatch):
    recordings, (coords, inputs) = Remembered(), question()
    monkeypatch.setattr(passes, "graph_cache_of", lambda model, elements: recordings)
    scaler = Scaler(*(Standardise.identity(channels) for channels in (2, 1, 2))).double()
    streamer, known = Streamer(make(), scaler=scaler), []
    for _ in range(2):
        streamer.forward(coords, inputs)
        known.append(len(recordings.works))
    scaler.outputs.mean = scaler.outputs.mean + 1
    streamer.forward(coords, inputs)
    assert known == [known[0]] * 2
    assert len(recordings.works) == 2 * known[0]


def test_arrays_on_disk_go_in_and_out_as_they_are(tmp_path):
    model, (coords, inputs) = make(dtype=torch.float32), question(samples=1)
    arrays = {"coords": coords[0], "inputs": inputs[0], "out": torch.zeros(41, 2)}
    for name, tensor in arrays.items():
        np.save(tmp_path / f"{name}.npy", tensor.numpy())
    opened = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("coords", "inputs")}
    out = np.load(tmp_path / "out.npy", mmap_mode="r+")
    stream(model, *opened.values(), chunk=17, out=out)
    out.flush()
    with torch.no_grad():
        whole = model(coords.float(), inputs.float())[0]
    assert_same(torch.from_numpy(np.load(tmp_path / "out.npy")), whole)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("kind", [LinearNO, Transolver])
def test_a_mesh_encoded_in_chunks_answers_anywhere(kind, keep):
    model, (coords, inputs) = make(kind), question()
    streamer = Streamer(model, chunk=13, keep=keep)
    states = streamer.encode(coords, inputs)
    for ours, whole in zip(states, model.encode(coords, inputs), strict=True):
        torch.testing.assert_close(ours.value, whole.value.detach())
        torch.testing.assert_close(ours.max + ours.sum.log(), (whole.max + whole.sum.log()).detach())
    some = torch.tensor([3, 17, 30, 39])
    asked = streamer.query(coords[:, some], states, inputs[:, some])
    assert_same(asked, model(coords, inputs)[:, some].detach())


@pytest.mark.parametrize("kind", [LinearNO, Transolver])
def test_features_kept_in_bf16_cost_no_accuracy_that_bf16_has_not_cost_before(kind):
    model, asked = make(kind, torch.float32), question(400, samples=1, dtype=torch.float32)
    assert Streamer(model, precision="bf16").plan(400).kept_type == torch.bfloat16
    with torch.no_grad():
        exact = model(*asked)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            usual = (model(*asked) - exact).norm()
    for chunk in (13, 400):
        assert (stream(model, *asked, precision="bf16", chunk=chunk) - exact).norm() < 1.5 * usual


class Largest(TorchDispatchMode):
    """The most numbers that any tensor had."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.numbers = max(self.numbers, leaf.numel())
        return result


def test_without_a_shelf_nothing_grows_with_the_mesh():
    model, found = make(dtype=torch.float32), []
    for points in (500, 4000):
        coords, inputs = question(points, samples=1, dtype=torch.float32)
        with Largest() as seen:
            Streamer(model, chunk=100, keep="recompute").encode(coords[0].numpy(), inputs[0].numpy())
        found.append(seen.numbers)
    coords, inputs = (array.numel() for array in question(4000, samples=1))
    assert found[1] == max(found[0], coords, inputs)


def test_every_chunk_of_every_pass_is_reported():
    model, (coords, inputs), told = make(), question(samples=1), []
    Streamer(model, chunk=16, on_chunk=lambda *progress: told.append(progress)).forward(coords, inputs)
    passes = SMALL["depth"] + 1
    assert told == [(41 * i + done, 41 * passes) for i in range(passes) for done in (16, 32, 41)]


def test_a_plan_takes_what_memory_allows():
    model = LinearNO(coords=3, outputs=1, width=128, depth=4, heads=8, slices=32)
    roomy, tight, tiny = (plan(model, 10**6, memory=memory) for memory in ("2GB", "200MB", "20MB"))
    assert (roomy.keep, tight.keep) == ("host", "disk")
    assert roomy.chunk == tight.chunk > tiny.chunk
    assert roomy.kept_bytes == 10**6 * 128 * 4
    for found, memory in ((roomy, "2GB"), (tight, "200MB"), (tiny, "20MB")):
        assert found.bytes <= parse_bytes(memory)
        assert sum(n.stop - n.start for n in found.chunks) == 10**6
    again = plan(model, 10**6, keep="recompute")
    assert again.flops > 2 * roomy.flops
    assert "1,000,000 points" in str(roomy)
    assert "kept in host memory, 512 MB" in str(roomy)


def test_without_room_on_the_disk_features_are_recomputed(monkeypatch):
    model = LinearNO(coords=3, outputs=1, width=128, depth=4)
    monkeypatch.setattr(planning, "free_disk", lambda folder: 10**6)
    assert plan(model, 10**6, memory="200MB").keep == "recompute"
    with pytest.raises(UserError, match=r"keep='disk' needs 512 MB on disk, where there are 900 kB"):
        plan(model, 10**6, keep="disk")


def test_a_full_disk_is_reported_in_a_line():
    rows = OnDisk((1, 10, 4), torch.float32)
    rows.file.close()
    rows.file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 (closed with the rows)
    with pytest.raises(UserError, match=r"cannot keep features on disk in .*No space left"):
        rows.write(slice(0, 3), torch.zeros(1, 3, 4))


def test_an_estimate_of_the_time_is_taken_from_a_small_mesh():
    streamer = Streamer(make(time=True, unified={"ref": 3, "place": "coords"}))
    small, large = streamer.plan(1000), streamer.plan(10**6)
    assert 0 < streamer.seconds(small) < streamer.seconds(large)


@pytest.mark.parametrize(
    ("written", "size"), [(12345, 12345), ("2GB", 2 * 10**9), ("1.5 kb", 1500), ("8GiB", 2**33), ("7", 7)]
)
def test_sizes_are_read_as_people_write_them(written, size):
    assert parse_bytes(written) == size


def test_sizes_are_shown_as_people_read_them():
    assert [format_bytes(size) for size in (12, 1500, 512e6, 51.2e9, 2e13)] == [
        "12 B",
        "1.5 kB",
        "512 MB",
        "51.2 GB",
        "20 TB",
    ]


@pytest.mark.parametrize("size", ["much", "-2GB", "0", "2XB"])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(UserError, match="memory"):
        parse_bytes(size)


def test_what_cannot_be_streamed_is_refused_before_any_work():
    coords, inputs = question(30)
    grid = LinearNO(coords=2, inputs=1, outputs=1, **SMALL, stem="conv", grid=(5, 6))
    with pytest.raises(UserError, match="tied to a grid cannot be queried elsewhere or streamed"):
        stream(grid, coords, inputs)
    with pytest.raises(UserError, match=r"φ normalised over the points cannot be .* streamed"):
        stream(make(phi="N"), coords, inputs)
    model = make()
    with pytest.raises(UserError, match="memory=1 kB is too little: 30 points at a time need about"):
        stream(model, coords, inputs, memory="1kB")
    with pytest.raises(UserError, match=r"with keep='host' need about .*; give more, or keep=recompute"):
        stream(model, coords, inputs, memory="1kB", keep="host")
    with pytest.raises(UserError, match="keep='dsik' is not known; did you mean 'disk'"):
        planning._choices("dsik", "cpu")
    with pytest.raises(UserError, match="chunk=0: expected one point or more"):
        stream(model, coords, inputs, chunk=0)
    with pytest.raises(UserError, match="no points"):
        stream(model, coords[:, :0], inputs[:, :0])


def test_questions_that_do_not_fit_are_refused():
    model, (coords, inputs) = make(), question(30)
    with pytest.raises(UserError, match="takes 1 inputs a point, got 0"):
        stream(model, coords)
    with pytest.raises(UserError, match="inputs are of 2×29 points, coords of 2×30"):
        stream(model, coords, inputs[:, :29])
    with pytest.raises(UserError, match=r"coords: expected .* got \(2,\)"):
        stream(model, coords[0, 0], inputs)
    with pytest.raises(UserError, match="coords: expected floating-point numbers"):
        stream(model, coords.long(), inputs)
    with pytest.raises(UserError, match=r"out has shape \(2, 30, 1\), the outputs have \(2, 30, 2\)"):
        stream(model, coords, inputs, out=torch.empty(2, 30, 1))
    inputs[1, 7] = torch.nan
    with pytest.raises(UserError, match="coordinates or inputs hold NaN or infinite values"):
        stream(model, coords, inputs, chunk=4)
