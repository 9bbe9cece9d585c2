"""Errors, names, files, devices and random numbers."""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch

import linearno
from linearno.core import atomic_io as artifacts
from linearno.core.device import autocast, resolve_device
from linearno.core.errors import UserError, did_you_mean, require
from linearno.core.randomness import numpy_generator, torch_generator
from linearno.core.registry import Registry


def test_a_missing_name_is_answered_with_its_neighbours():
    registry = Registry("model")
    registry.register("linearno")(1)
    with pytest.raises(UserError, match="unknown model 'linearon'; did you mean 'linearno'"):
        registry["linearon"]
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("linearno")(2)
    assert list(registry) == ["linearno"]
    assert did_you_mean("zzz", ["a", "b"]) == "known: a, b"


def test_a_missing_file_says_how_to_get_it(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist; make it"):
        require(tmp_path / "nowhere", how="make it")


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path / "value.json"
    artifacts.write_json(path, {"a": 1})

    def half(temporary):
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write .*value\.json: No space left on device"):
        artifacts.write_atomically(path, half)
    assert artifacts.read_json(path, how="") == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_tensors_survive_their_file_and_a_cut_one_is_named(tmp_path):
    path = tmp_path / "t.safetensors"
    artifacts.write_tensors(path, {"w": torch.arange(6.0).view(2, 3).mT})
    assert torch.equal(artifacts.read_tensors(path, how="")["w"], torch.arange(6.0).view(2, 3).mT)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match="truncated or not a safetensors file"):
        artifacts.read_tensors(path, how="train again")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_every_written_file_has_the_mode_that_the_umask_asks_for(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        artifacts.write_tensors(tmp_path / "w.safetensors", {"w": torch.zeros(3)})
        artifacts.write_tensors(tmp_path / "w.safetensors", {"w": torch.ones(3)})  # and written again
        artifacts.write_json(tmp_path / "a.json", {})
        artifacts.write_bytes(tmp_path / "b.bin", b"")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(["w.safetensors", "a.json", "b.bin"], mode)


def test_a_folder_that_cannot_be_written_is_refused_before_work(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write to"):
        artifacts.writable_folder(tmp_path / "file" / "runs")


HOLD_AND_DIE = """
import os, pathlib, subprocess, sys
from linearno.core.atomic_io import folder_lock
with folder_lock(pathlib.Path(sys.argv[1])):
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    child = subprocess.Popen(["sleep", "60"], close_fds=False, **quiet)
    print(child.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_the_lock_of_a_folder_ends_with_its_process_although_a_child_survives(tmp_path):
    done = subprocess.run([sys.executable, "-c", HOLD_AND_DIE, tmp_path], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    child = int(done.stdout)
    os.kill(child, 0)  # still there
    try:
        with artifacts.folder_lock(tmp_path), pytest.raises(UserError, match="another process is writing to"):
            artifacts.folder_lock(tmp_path).__enter__()
    finally:
        os.kill(child, signal.SIGKILL)
    with artifacts.folder_lock(tmp_path):  # released at the end of the block
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF])
def test_a_file_system_without_locks_is_a_warning_once(tmp_path, monkeypatch, caplog, number):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    artifacts._warn_without_lock.cache_clear()
    for _ in range(2):
        with artifacts.folder_lock(tmp_path):
            pass
    assert caplog.text.count("folders cannot be locked") == 1


def test_cuda_that_is_not_there_is_refused_in_words():
    if torch.cuda.is_available():
        assert resolve_device("auto").type == "cuda"
        return
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(UserError, match="no CUDA device"):
        resolve_device("cuda")


@pytest.mark.parametrize("name", ["gpu", "mps", "tpu:0"])
def test_a_device_that_is_not_known_is_refused(name):
    with pytest.raises(UserError, match="expected auto, cpu"):
        resolve_device(name)


def test_bf16_reaches_products_and_fp32_does_not():
    x = torch.randn(4, 4)
    with autocast("bf16", torch.device("cpu")):
        assert (x @ x).dtype == torch.bfloat16
    with autocast("fp32", torch.device("cpu")):
        assert (x @ x).dtype == torch.float32


def test_random_numbers_depend_on_seed_and_place_alone():
    first = numpy_generator(0, 1, 5).standard_normal(4)
    numpy_generator(0, 1, 4).standard_normal(100)
    assert np.array_equal(first, numpy_generator(0, 1, 5).standard_normal(4))
    assert not np.array_equal(first, numpy_generator(1, 1, 5).standard_normal(4))
    assert torch.equal(
        torch.randperm(9, generator=torch_generator(3, 2)), torch.randperm(9, generator=torch_generator(3, 2))
    )
    assert torch_generator(3, 2).initial_seed() != torch_generator(3, 3).initial_seed()


def test_importing_the_library_needs_no_optional_package_and_draws_no_picture():
    code = (
        "import sys; from linearno import *; "
        "print(sorted({'matplotlib', 'typer', 'rich', 'pytest'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip() == "[]", done.stderr


LAZY = """
import sys
import linearno, linearno.cli
assert not {"torch", "numpy", "pydantic", "typer"} & set(sys.modules), "heavy modules are imported at once"
assert set(linearno.__all__) <= set(dir(linearno))
assert linearno.ops.gather and "torch" in sys.modules
from linearno import LinearNO, load
from linearno.inference.bundle import load as same
assert load is same is linearno.load
assert linearno.LinearNO is LinearNO
try:
    linearno.no_such_name
except AttributeError as error:
    print(error)
"""


def test_the_package_imports_pytorch_when_a_name_that_needs_it_is_used():
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True)
    assert done.stdout.strip() == "module 'linearno' has no attribute 'no_such_name'", done.stderr


def test_every_public_name_is_found():
    assert all(getattr(linearno, name) is not None for name in linearno.__all__)
