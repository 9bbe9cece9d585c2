"""A set carried as one small file: what the network is given comes back to the bit, the rest nearly so."""

import shutil
import zipfile

import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.data import DATASETS, DarcyConfig
from linearno.data.compress import pack, unpack
from linearno.data.generation.card import read_card, write_card
from tests.commands import linearno, refused


@pytest.fixture
def packed(darcy_folder, tmp_path):
    path = tmp_path / "darcy.pack"
    off = pack("darcy", darcy_folder, path, rounded=("sol",), how="")
    return path, off


@pytest.fixture
def copy(darcy_folder, tmp_path):
    """A set that a test may change."""
    return shutil.copytree(darcy_folder, tmp_path / "copy")


def describe_again(root, **changes):
    card = read_card(root, how="")
    write_card(root, card.files, card.model_dump(mode="json") | changes)


def rewrite(path, edit):
    """Let `edit` change the members of a pack, as bytes by their names."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    edit(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, content in members.items():
            file.writestr(name, content)


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
        assert 0 < error <= off[f"{split}_sol.npy"]
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
    off = pack("darcy", darcy_folder, path, rounded=("coeff",), how="")
    unpack(path, tmp_path / "set")
    before, after = (np.load(root / "train_coeff.npy") for root in (darcy_folder, tmp_path / "set"))
    assert np.abs(before - after).max() <= off["train_coeff.npy"]


def test_fields_of_different_size_in_one_array_are_each_rounded_in_their_own_range(tmp_path):
    sizes = {"train": 2, "test": 1}
    pipe = DATASETS["pipe"]
    pipe.generate(tmp_path / "a", sizes=sizes, resolution=9, seed=0, workers=1, tick=lambda n: None)
    pack("pipe", tmp_path / "a", tmp_path / "a.pack", rounded=pipe.outputs, channels=pipe.channels, how="")
    unpack(tmp_path / "a.pack", tmp_path / "b")
    before, after = (np.load(tmp_path / root / "train_Q.npy").astype(float) for root in "ab")
    for channel in range(3):
        one, other = before[:, channel], after[:, channel]
        assert np.abs(one - other).max() < 1e-5 * (one.max() - one.min())
    for field in "XY":
        one, other = (np.load(tmp_path / root / f"train_{field}.npy") for root in "ab")
        np.testing.assert_array_equal(one, other)


def test_the_card_bounds_the_error_of_numbers_far_from_zero(copy, tmp_path):
    """Half a step of 16 bits is 1.8 steps of float32 there: the largest error is two."""
    values = np.load(copy / "train_sol.npy").astype(float)
    values = 40 + 0.9 * (values - values.min()) / (values.max() - values.min())
    np.save(copy / "train_sol.npy", values.astype(np.float32))
    describe_again(copy)
    pack("darcy", copy, tmp_path / "a.pack", rounded=("sol",), how="")
    unpack(tmp_path / "a.pack", tmp_path / "set")
    before, after = (np.load(root / "train_sol.npy").astype(float) for root in (copy, tmp_path / "set"))
    error = np.abs(before - after).max()
    assert 0.9 / 2**17 < error <= read_card(tmp_path / "set", how="").rounding["train_sol.npy"]


def test_a_set_that_is_packed_again_keeps_its_first_error(packed, tmp_path):
    path, off = packed
    unpack(path, tmp_path / "once")
    again = pack("darcy", tmp_path / "once", path, rounded=("sol",), how="")
    unpack(path, tmp_path / "twice")
    assert again == read_card(tmp_path / "twice", how="").rounding
    assert again == {name: pytest.approx(2 * error) for name, error in off.items()}


def test_who_made_a_set_is_still_known_after_it_was_carried(copy, tmp_path):
    describe_again(copy, versions={"linearno": "0.0.1"}, commit="of-another-machine")
    pack("darcy", copy, tmp_path / "a.pack", rounded=("sol",), how="")
    unpack(tmp_path / "a.pack", tmp_path / "set")
    card = read_card(tmp_path / "set", how="")
    assert (card.versions, card.commit) == ({"linearno": "0.0.1"}, "of-another-machine")


def test_a_set_that_is_not_as_its_card_says_is_not_packed(copy, tmp_path):
    values = np.load(copy / "test_coeff.npy")
    values[0, 0, 0] += 1
    np.save(copy / "test_coeff.npy", values)
    command = ("data", "pack", "darcy", "--root", copy, "-o", tmp_path / "a.pack")
    assert "test_coeff.npy is not the file that was made" in refused(*command)
    values[0, 0, 0] = np.nan
    np.save(copy / "test_coeff.npy", values)
    describe_again(copy)
    assert "sample 0 has NaN" in refused(*command)
    assert not (tmp_path / "a.pack").exists()


def test_a_set_of_another_benchmark_is_not_packed(darcy_folder, tmp_path):
    with pytest.raises(UserError, match="holds the set darcy, not pipe; give the folder of pipe"):
        pack("pipe", darcy_folder, tmp_path / "a.pack", rounded=("Q",), how="")
    assert not (tmp_path / "a.pack").exists()


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


def assert_damaged(path, folder, words=""):
    """The command refuses the pack in one line, and the folder is as empty as it was, or not there."""
    line = refused("data", "unpack", path, "--out", folder)
    assert f"{path.name} is damaged or no packed set" in line
    assert words in line
    assert not folder.exists()
    folder.mkdir()
    refused("data", "unpack", path, "--out", folder)
    assert list(folder.iterdir()) == []
    folder.rmdir()


@pytest.mark.parametrize("place", [0.3, 0.5, 0.7])
def test_a_flipped_byte_is_noticed(packed, tmp_path, place):
    path, _ = packed
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0xFF
    path.write_bytes(content)
    assert_damaged(path, tmp_path / "set")


def test_a_folder_or_a_zip_file_of_something_else_is_no_pack(packed, tmp_path):
    path, _ = packed
    assert_damaged(tmp_path, tmp_path / "set", "Is a directory")
    rewrite(path, lambda members: members.update({"pack.json": b'{"rounded": [], "chunk": 64}'}))
    assert_damaged(path, tmp_path / "set", "rounded")
    rewrite(path, lambda members: members.pop("card.json"))
    assert_damaged(path, tmp_path / "set", "card.json")


def test_an_input_other_than_the_card_says_is_noticed(packed, tmp_path):
    """Its bytes are whole as the zip file sees it."""
    path, _ = packed

    def edit(members):
        content = members["test_coeff.npy/0"]
        members["test_coeff.npy/0"] = bytes([content[0] ^ 1]) + content[1:]

    rewrite(path, edit)
    assert_damaged(path, tmp_path / "set", "test_coeff.npy is not the file that was packed")


@pytest.mark.parametrize("name", ["../../escaped.npy", "{}/escaped.npy", "a/escaped.npy", ".."])
def test_a_file_outside_of_the_folder_is_not_written(packed, tmp_path, name):
    path, _ = packed
    name = name.format(tmp_path)

    def edit(members):
        members["card.json"] = members["card.json"].replace(b"train_coeff.npy", name.encode())
        members[f"{name}/0"] = members["train_coeff.npy/0"]

    rewrite(path, edit)
    (tmp_path / "here").mkdir()
    assert_damaged(path, tmp_path / "here" / "set", name)
    assert list(tmp_path.rglob("escaped.npy")) == []


def test_an_empty_folder_is_filled_even_the_one_we_are_in(packed, tmp_path, monkeypatch):
    path, _ = packed
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    code, output = linearno("data", "unpack", path, "--out", ".")
    assert code == 0, output
    assert {file.name for file in folder.iterdir()} == {"card.json", *read_card(folder, how="").files}
    assert DATASETS["darcy"].verify(folder) == []


def test_the_commands_carry_a_set(darcy_folder, tmp_path):
    code, output = linearno("data", "pack", "darcy", "--root", darcy_folder, "-o", tmp_path / "d.pack")
    assert code == 0, output
    assert "train_sol.npy to ±" in output
    code, output = linearno("data", "unpack", tmp_path / "d.pack", "--out", tmp_path / "d")
    assert code == 0, output
    assert "train 24, test 6" in output
    assert "does not exist" in refused("data", "unpack", tmp_path / "nowhere.pack")
    assert "card.json" in refused("data", "pack", "darcy", "--root", tmp_path)
    assert "holds the set darcy, not pipe" in refused("data", "pack", "pipe", "--root", darcy_folder)
