"""Sets packed as one small file: inputs are restored exactly, outputs to the stated precision."""

import json
import shutil
import zipfile

import h5py
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


def rewrite_card(root, **changes):
    card = read_card(root, how="")
    write_card(root, card.files, card.model_dump(mode="json") | changes)


def replace_array(path, name, values):
    """Store other values under a name of a packed file, with valid checksums."""
    with h5py.File(path, "r+") as file:
        del file[name]
        file.create_dataset(name, data=values, compression="gzip", fletcher32=True)


def card_in(path):
    with h5py.File(path) as file:
        return json.loads(file["card.json"][:].tobytes())


def replace_card(path, card):
    replace_array(path, "card.json", np.frombuffer(json.dumps(card).encode(), "u1"))


def test_inputs_are_exact_and_outputs_accurate_to_1e_5_of_their_range(darcy_folder, packed, tmp_path):
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


def test_a_packed_set_is_smaller_and_can_be_opened_again(darcy_folder, packed, tmp_path):
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


def test_a_constant_output_is_unchanged(copy, tmp_path):
    values = np.full_like(np.load(copy / "train_sol.npy"), 0.1)
    np.save(copy / "train_sol.npy", values)
    rewrite_card(copy)
    pack("darcy", copy, tmp_path / "a.pack", rounded=("sol",), how="")
    unpack(tmp_path / "a.pack", tmp_path / "set")
    np.testing.assert_array_equal(np.load(tmp_path / "set" / "train_sol.npy"), values)


def test_each_channel_is_rounded_within_its_own_range(tmp_path):
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
    """Where the spacing of float32 is comparable to the rounding."""
    values = np.load(copy / "train_sol.npy").astype(float)
    values = 40 + 0.9 * (values - values.min()) / (values.max() - values.min())
    np.save(copy / "train_sol.npy", values.astype(np.float32))
    rewrite_card(copy)
    pack("darcy", copy, tmp_path / "a.pack", rounded=("sol",), how="")
    unpack(tmp_path / "a.pack", tmp_path / "set")
    before, after = (np.load(root / "train_sol.npy").astype(float) for root in (copy, tmp_path / "set"))
    error = np.abs(before - after).max()
    assert 0 < error <= read_card(tmp_path / "set", how="").rounding["train_sol.npy"]


def test_packing_again_adds_the_errors(packed, tmp_path):
    path, off = packed
    unpack(path, tmp_path / "once")
    again = pack("darcy", tmp_path / "once", path, rounded=("sol",), how="")
    unpack(path, tmp_path / "twice")
    assert again == read_card(tmp_path / "twice", how="").rounding
    assert again == {name: pytest.approx(2 * error) for name, error in off.items()}


def test_versions_and_commit_are_those_of_the_machine_that_generated_the_set(copy, tmp_path):
    rewrite_card(copy, versions={"linearno": "0.0.1"}, commit="of-another-machine")
    pack("darcy", copy, tmp_path / "a.pack", rounded=("sol",), how="")
    unpack(tmp_path / "a.pack", tmp_path / "set")
    card = read_card(tmp_path / "set", how="")
    assert (card.versions, card.commit) == ({"linearno": "0.0.1"}, "of-another-machine")


def test_a_set_that_disagrees_with_its_card_is_refused(copy, tmp_path):
    values = np.load(copy / "test_coeff.npy")
    values[0, 0, 0] += 1
    np.save(copy / "test_coeff.npy", values)
    command = ("data", "pack", "darcy", "--root", copy, "-o", tmp_path / "a.pack")
    assert "test_coeff.npy is not the file that was made" in refused(*command)
    values[0, 0, 0] = np.nan
    np.save(copy / "test_coeff.npy", values)
    rewrite_card(copy)
    assert "sample 0 has NaN" in refused(*command)
    assert not (tmp_path / "a.pack").exists()


def test_a_set_of_another_benchmark_is_refused(darcy_folder, tmp_path):
    with pytest.raises(UserError, match="holds the set darcy, not pipe; give the folder of pipe"):
        pack("pipe", darcy_folder, tmp_path / "a.pack", rounded=("Q",), how="")
    assert not (tmp_path / "a.pack").exists()


def test_a_truncated_file_and_a_full_folder_are_refused(packed, tmp_path):
    path, _ = packed
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match="damaged or not a packed set"):
        unpack(path, tmp_path / "set")
    assert not (tmp_path / "set").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(UserError, match="not an empty folder"):
        unpack(path, tmp_path / "full")


def test_a_file_of_the_former_format_is_refused_in_one_line(tmp_path):
    with zipfile.ZipFile(tmp_path / "old.pack", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("card.json", "{}")
        file.writestr("pack.json", '{"rounded": {}, "chunk": 64}')
    line = refused("data", "unpack", tmp_path / "old.pack", "--out", tmp_path / "set")
    assert "old.pack was packed by an earlier version, in a format no longer read; pack it again" in line
    assert not (tmp_path / "set").exists()


def assert_damaged(path, folder, message=""):
    """The command refuses the file in one line, and the folder stays empty or absent."""
    line = refused("data", "unpack", path, "--out", folder)
    assert f"{path.name} is damaged or not a packed set" in line
    assert message in line
    assert not folder.exists()
    folder.mkdir()
    refused("data", "unpack", path, "--out", folder)
    assert list(folder.iterdir()) == []
    folder.rmdir()


@pytest.mark.parametrize("position", [0.3, 0.5, 0.7])
def test_a_flipped_byte_is_detected(packed, tmp_path, position):
    path, _ = packed
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 0xFF
    path.write_bytes(content)
    assert_damaged(path, tmp_path / "set")


def test_a_folder_and_other_hdf5_files_are_refused(packed, tmp_path):
    path, _ = packed
    assert f"{tmp_path} is not a packed set" in refused("data", "unpack", tmp_path, "--out", tmp_path / "set")
    with h5py.File(path, "r+") as file:
        del file["test_coeff.npy"]
    assert_damaged(path, tmp_path / "set", "it holds no array 'test_coeff.npy'")
    with h5py.File(path, "r+") as file:
        file["test_coeff.npy"] = h5py.ExternalLink(path.with_name("other.h5"), "values")
    assert_damaged(path, tmp_path / "set", "it holds no array 'test_coeff.npy'")
    replace_array(path, "test_coeff.npy", np.zeros((6, 5, 5), np.float32))
    assert_damaged(path, tmp_path / "set", "test_coeff.npy is float32 (6, 5, 5), not float32 (6, 33, 33)")
    with h5py.File(path, "r+") as file:
        del file["card.json"]
    assert_damaged(path, tmp_path / "set", "it holds no array 'card.json'")


def test_an_input_that_differs_from_the_card_is_refused(packed, tmp_path):
    path, _ = packed
    with h5py.File(path) as file:
        values = file["test_coeff.npy"][:]
    values[0, 0, 0] += 1
    replace_array(path, "test_coeff.npy", values)
    assert_damaged(path, tmp_path / "set", "test_coeff.npy is not the file that was packed")


@pytest.mark.parametrize("name", ["../../escaped.npy", "{}/escaped.npy", "a/escaped.npy", ".."])
def test_no_file_outside_of_the_folder_is_written(packed, tmp_path, name):
    path, _ = packed
    name = name.format(tmp_path)
    card = card_in(path)
    card["files"][name] = card["files"].pop("train_coeff.npy")
    replace_card(path, card)
    (tmp_path / "here").mkdir()
    assert_damaged(path, tmp_path / "here" / "set", name)
    assert list(tmp_path.rglob("escaped.npy")) == []


def test_an_empty_folder_is_filled_also_the_working_folder(packed, tmp_path, monkeypatch):
    path, _ = packed
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    code, output = linearno("data", "unpack", path, "--out", ".")
    assert code == 0, output
    assert {file.name for file in folder.iterdir()} == {"card.json", *read_card(folder, how="").files}
    assert DATASETS["darcy"].verify(folder) == []


def test_the_commands_pack_and_unpack_a_set(darcy_folder, tmp_path):
    code, output = linearno("data", "pack", "darcy", "--root", darcy_folder, "-o", tmp_path / "d.pack")
    assert code == 0, output
    assert "train_sol.npy to ±" in output
    code, output = linearno("data", "unpack", tmp_path / "d.pack", "--out", tmp_path / "d")
    assert code == 0, output
    assert "train 24, test 6" in output
    assert "does not exist" in refused("data", "unpack", tmp_path / "nowhere.pack")
    assert "card.json" in refused("data", "pack", "darcy", "--root", tmp_path)
    assert "holds the set darcy, not pipe" in refused("data", "pack", "pipe", "--root", darcy_folder)
