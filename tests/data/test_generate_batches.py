"""Samples that are made several at once, and the devices they are made on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from linearno.core.errors import SampleError, UserError
from linearno.data.darcy import generate_darcy
from linearno.data.generation import generate as module
from linearno.data.generation.card import read_card
from linearno.data.generation.generate import DataGenerator
from linearno.data.generation.plan import describe_unfinished
from tests.data.toy_sets import fill, interrupted_after


def in_batches(size: int, make_batch=generate_darcy.make_batch) -> DataGenerator:
    """Darcy as a GPU makes it, several samples at once."""
    return replace(generate_darcy, make_batch=make_batch, batch_size=lambda resolution, device: size)


def test_the_size_of_a_batch_changes_no_byte_and_batches_may_cross_splits(serial, tmp_path):
    assert fill(tmp_path / "one", generator=generate_darcy, resolution=11) == [1] * 6
    assert fill(tmp_path / "three", generator=in_batches(3), resolution=11) == [3, 3]
    assert fill(tmp_path / "five", generator=in_batches(5), resolution=11) == [5, 1]
    one, three, five = (read_card(tmp_path / name, how="").files for name in ("one", "three", "five"))
    assert one == three == five


def test_a_stop_within_a_batch_loses_that_batch_only(serial, tmp_path):
    calls = iter(range(1))

    def stop(rngs, resolution, device):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return generate_darcy.make_batch(rngs, resolution, device)

    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "cut", generator=in_batches(2, stop), resolution=11)
    assert describe_unfinished(tmp_path / "cut") == "its generation stopped after 2 of 6 samples"
    assert fill(tmp_path / "cut", generator=in_batches(2), resolution=11) == [2, 2, 2]
    fill(tmp_path / "whole", generator=in_batches(2), resolution=11)
    assert read_card(tmp_path / "cut", how="").files == read_card(tmp_path / "whole", how="").files


def test_in_a_batch_the_sample_that_cannot_be_made_is_named(serial, tmp_path):
    def fails(error):
        def make_batch(rngs, resolution, device):
            raise error

        return in_batches(4, make_batch)

    def broken(rngs, resolution, device):
        fields = generate_darcy.make_batch(rngs, resolution, device)
        fields["sol"][2, 3, 3] = np.nan
        return fields

    for generator, complaint in (
        (fails(SampleError(3, "did not converge")), "^test sample 0: did not converge"),
        (fails(UserError("no room")), "^train sample 0 to test sample 0: no room"),
        (fails(torch.OutOfMemoryError()), "too little memory for a batch of 4"),
        (in_batches(4, broken), "^train sample 2: the solver gave NaN or infinite values for sol"),
    ):
        with pytest.raises(UserError, match=complaint):
            fill(tmp_path, generator=generator, resolution=11, sizes={"train": 3, "test": 2})
        assert not list(tmp_path.iterdir())


def test_the_card_says_which_device_solved_and_a_set_is_not_begun_on_one_and_ended_on_another(
    serial, tmp_path, monkeypatch
):
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, generator=interrupted_after(3))
    with monkeypatch.context() as patch:
        patch.setattr(module, "card_device", lambda device: "Some GPU")
        with pytest.raises(
            UserError, match=r"was started on cpu, and this is Some GPU: .* differ by rounding"
        ):
            fill(tmp_path)
    fill(tmp_path)
    assert read_card(tmp_path, how="").device == "cpu"


def test_a_set_begun_or_made_before_devices_were_recorded_was_made_on_a_cpu(serial, tmp_path):
    def forget(path):
        values = json.loads(path.read_text())
        del values["device"]
        path.write_text(json.dumps(values))

    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, generator=interrupted_after(3))
    forget(tmp_path / "progress.json")
    assert fill(tmp_path) == [3, 1, 1, 1]
    forget(tmp_path / "card.json")
    assert fill(tmp_path) == []


def test_a_recipe_that_does_not_batch_stays_on_the_cpu(serial, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    fill(tmp_path / "auto", device="auto")
    assert read_card(tmp_path / "auto", how="").device == "cpu"
    with pytest.raises(UserError, match="the solver of toy runs on the CPU only"):
        fill(tmp_path / "cuda", device="cuda")
    assert not (tmp_path / "cuda").exists()
    assert generate_darcy.device("auto") == torch.device("cuda")


@pytest.mark.parametrize(("free", "size"), [(0, 1), (399, 1), (1000, 4), (1500, 4), (1600, 8), (10**9, 32)])
def test_a_batch_is_a_power_of_two_that_fits_half_of_the_free_memory(monkeypatch, free, size):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2 * free))
    assert module.batch_that_fits(torch.device("cuda"), 100, most=50) == size
    assert module.batch_that_fits(torch.device("cpu"), 100) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_makes_the_set_of_the_cpu_to_rounding(serial, tmp_path):
    sizes = {"train": 5, "test": 2}
    fill(tmp_path / "cpu", generator=generate_darcy, resolution=65, sizes=sizes)
    assert (
        sum(fill(tmp_path / "gpu", generator=generate_darcy, resolution=65, sizes=sizes, device="auto")) == 7
    )
    cards = {name: read_card(tmp_path / name, how="") for name in ("cpu", "gpu")}
    assert cards["gpu"].device == torch.cuda.get_device_name()
    for split in sizes:
        coeff, sol = (f"{split}_{field}.npy" for field in ("coeff", "sol"))
        assert cards["cpu"].files[coeff] == cards["gpu"].files[coeff]
        one, other = (np.load(tmp_path / name / sol) for name in ("cpu", "gpu"))
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.abs(one).max())  # float32 on disk


def test_of_few_samples_each_worker_has_its_share(tmp_path):
    """A batch could hold all six; two workers get three each, and progress comes twice."""
    assert fill(tmp_path, generator=in_batches(100), resolution=9, workers=2) == [3, 3]
