"""A set carried as one small file: what the network is given comes back to the bit, the rest nearly so."""

import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.data import DATASETS, DarcyConfig
from linearno.data.card import read_card
from linearno.data.pack import pack, unpack
from tests.commands import linearno, refused


@pytest.fixture
def packed(darcy_folder, tmp_path):
    path = tmp_path / "darcy.pack"
    off = pack(darcy_folder, path, rounded=("sol",), how="")
    return path, off


def test_inputs_come_back_to_the_bit_and_outputs_to_a_hundred_thousandth_of_their_range(
    darcy_folder, packed, tmp_path
):
    path, off = packed
    unpack(path, tmp_path / "set")
    for split in ("train", "test"):
        before, after = (np.load(root / f"{split}_coeff.npy") for root in (darcy_folder, tmp_path / "set"))
        assert before.dtype == after.dtype == np.float32
        np.testing.assert_array_equal(before, after)
        before, after = (np.load(root / f"{split}_sol.npy") for root in (darcy_folder, tmp_path / "set"))
        error = np.abs(before.astype(float) - after).max()
        assert 0 < error <= off[f"{split}_sol.npy"] * 1.01  # float32 rounds once more
        assert error < 1e-5 * (before.max() - before.min())


def test_a_packed_set_is_much_smaller_and_a_set_like_any_other(darcy_folder, packed, tmp_path):
    path, off = packed
    there = sum(file.stat().st_size for file in darcy_folder.glob("*.npy"))
    assert path.stat().st_size < there / 3
    unpack(path, tmp_path / "set")
    benchmark = DATASETS["darcy"]
    assert benchmark.verify(tmp_path / "set") == []
    splits = benchmark.open(DarcyConfig(root=tmp_path / "set", train=24, test=6, stride=4))
    assert len(splits.train) == 24
    card = read_card(tmp_path / "set", how="")
    assert card.rounding == off
    assert read_card(darcy_folder, how="").rounding == {}


def test_a_constant_output_survives(tmp_path, darcy_folder):
    path = tmp_path / "constant.pack"
    off = pack(darcy_folder, path, rounded=("coeff",), how="")
    unpack(path, tmp_path / "set")
    before, after = (np.load(root / "train_coeff.npy") for root in (darcy_folder, tmp_path / "set"))
    assert np.abs(before - after).max() <= off["train_coeff.npy"] * 1.01


def test_fields_of_different_size_in_one_array_are_each_rounded_in_their_own_range(tmp_path):
    sizes = {"train": 2, "test": 1}
    pipe = DATASETS["pipe"]
    pipe.generate(tmp_path / "a", sizes=sizes, resolution=9, seed=0, workers=1, tick=lambda n: None)
    pack(tmp_path / "a", tmp_path / "a.pack", rounded=pipe.outputs, channels=pipe.channels, how="")
    unpack(tmp_path / "a.pack", tmp_path / "b")
    before, after = (np.load(tmp_path / root / "train_Q.npy").astype(float) for root in "ab")
    for channel in range(3):
        one, other = before[:, channel], after[:, channel]
        assert np.abs(one - other).max() < 1e-5 * (one.max() - one.min())
    for field in "XY":
        one, other = (np.load(tmp_path / root / f"train_{field}.npy") for root in "ab")
        np.testing.assert_array_equal(one, other)


def test_what_is_no_packed_set_is_refused_and_leaves_nothing(packed, tmp_path):
    path, _ = packed
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match="damaged or no packed set"):
        unpack(path, tmp_path / "set")
    assert not (tmp_path / "set").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(UserError, match="not an empty folder"):
        unpack(path, tmp_path / "full")


def test_the_commands_carry_a_set(darcy_folder, tmp_path):
    code, output = linearno("data", "pack", "darcy", "--root", darcy_folder, "-o", tmp_path / "d.pack")
    assert code == 0, output
    assert "train_sol.npy to ±" in output
    code, output = linearno("data", "unpack", tmp_path / "d.pack", "--out", tmp_path / "d")
    assert code == 0, output
    assert "train 24, test 6" in output
    assert "does not exist" in refused("data", "unpack", tmp_path / "nowhere.pack")
    assert "card.json" in refused("data", "pack", "darcy", "--root", tmp_path)
