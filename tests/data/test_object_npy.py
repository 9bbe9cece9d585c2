import numpy as np
import pytest

from linearno.core.errors import UserError
from linearno.data.object_npy import read_pickled
from tests.data.pickles import save, write_pickle


@pytest.mark.parametrize(
    "name", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\nfrombuffer", "copyreg\n_reconstructor"]
)
def test_a_name_other_than_those_of_arrays_is_refused(tmp_path, name):
    write_pickle(tmp_path / "bad.npy", f"c{name}\n.".encode())
    with pytest.raises(UserError, match="which is not part of an array"):
        read_pickled(tmp_path / "bad.npy", ("y",), how="")


def test_a_length_beyond_all_memory_is_refused(tmp_path):
    write_pickle(tmp_path / "bad.npy", b"\x80\x04\x8e" + (2**62).to_bytes(8, "little"))
    with pytest.raises(UserError, match="needs more memory than available: it is damaged, or too large"):
        read_pickled(tmp_path / "bad.npy", ("y",), how="")


def test_arrays_of_any_layout_come_back_as_they_were_saved(tmp_path):
    base = np.random.default_rng(0).standard_normal((4, 3, 2))
    arrays = {"rows": base, "columns": np.asfortranarray(base), "part": base[::2]}
    arrays |= {"single": base.astype("f4"), "swapped": base.astype(">f8")}
    save(tmp_path / "a.npy", arrays)
    for name, values in read_pickled(tmp_path / "a.npy", tuple(arrays), how="").items():
        np.testing.assert_array_equal(values, arrays[name])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"z": np.zeros(3)}, r"holds no 'x' \(known: z\)"),
        ({"x": 3, "y": np.zeros(3)}, "x is no array of real numbers"),
        ({"x": {"values": 1}, "y": np.zeros(3)}, "x is no array of real numbers"),
        ({"x": np.zeros(3, complex), "y": np.zeros(3)}, "x is no array of real numbers .*expected real"),
        ({"x": np.array([{}, 1]), "y": np.zeros(3)}, "x is no array of real numbers"),
        ([np.zeros(3)], "is truncated or no dictionary"),
        ("xy", "is truncated or no dictionary"),
        ({1: np.zeros(3), "z": np.zeros(3)}, r"holds no 'x' \(known: 1, z\)"),
    ],
)
def test_other_contents_are_refused(tmp_path, content, complaint):
    save(tmp_path / "a.npy", content)
    with pytest.raises(UserError, match=complaint):
        read_pickled(tmp_path / "a.npy", ("x", "y"), how="fetch it again")
