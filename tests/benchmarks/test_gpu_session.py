"""`python -m benchmarks gpu`: packs what it found, stops at its limit, and goes on from its pack."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks.gpu_stages import STAGES
from benchmarks.volumes import read_volumes, volume_path, write_volumes
from linearno.core.errors import UserError
from linearno.reproduce.plan import stored_records
from tests.commands import measure, refused_measurement

TOY = ["--toy", "--device", "cpu"]


def files_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "first.json").write_bytes(b"1" * 30)
    (root / "deep" / "large").write_bytes(bytes(range(250)))
    (root / "last").write_bytes(b"3" * 90)
    return root, [root / "first.json", root / "deep" / "large", root / "last"]


def test_volumes_restore_every_file_also_a_split_one(folder, tmp_path):
    root, files = folder
    pack = tmp_path / "pack.tar.gz"
    assert write_volumes(root, files, pack, size=100) == []
    assert volume_path(pack, 4).exists()
    assert read_volumes(pack, tmp_path / "again") == 3
    assert files_of(tmp_path / "again") == files_of(root)


def test_files_that_do_not_fit_are_named_and_old_volumes_removed(folder, tmp_path):
    root, files = folder
    pack = tmp_path / "pack.tar.gz"
    write_volumes(root, files, pack, size=100)
    assert write_volumes(root, files, pack, size=100, most=2) == [files[1]]
    read_volumes(pack, tmp_path / "again")
    assert set(files_of(tmp_path / "again")) == {"first.json", "last"}


def test_a_damaged_pack_and_one_from_elsewhere_are_refused(folder, tmp_path):
    root, _ = folder
    pack = tmp_path / "pack.tar.gz"
    write_volumes(root.parent, [root / "first.json"], pack)
    pack.write_bytes(pack.read_bytes()[:40])
    with pytest.raises(UserError, match="copy it again"):
        read_volumes(pack, tmp_path / "again")
    with tarfile.open(pack, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    with pytest.raises(UserError, match="outside of its folder"):
        read_volumes(pack, tmp_path / "again")
    assert not (tmp_path / "outside").exists()


def test_what_a_session_cannot_do_is_refused_in_one_line(tmp_path):
    out = ["--out", tmp_path / "gpu", "--device", "cpu"]
    assert "did you mean 'table4'" in refused_measurement("gpu", "--stages", "table44", *out)
    assert "expected STAGE=MINUTES" in refused_measurement("gpu", "--limit", "table4=long", *out)
    assert "of an earlier session" in refused_measurement("gpu", "--resume", tmp_path / "no.tar.gz", *out)


def test_the_stages_come_in_the_order_of_their_importance():
    order = [
        "tests",
        "step-check",
        "sanitizer",
        "model-steps",
        "table4",
        "table6",
        "table5",
        "table1",
        "seeds",
    ]
    assert list(STAGES) == [*order, "ns"]


@pytest.mark.slow
def test_a_killed_session_goes_on_from_its_pack(tmp_path):
    """Kill the session after its first record, restore its pack elsewhere, and finish there."""
    first, second = tmp_path / "first", tmp_path / "second"
    call = [sys.executable, "-m", "benchmarks", "gpu", *TOY, "--stages", "table4"]
    session = subprocess.Popen([*call, "--out", str(first)], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 120
    while not (packed := packed_records(first, tmp_path / "look")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(session.pid, signal.SIGKILL)
    session.wait()
    assert packed
    pack = (first / "pack.tar.gz").rename(tmp_path / "pack.tar.gz")
    code, output = measure("gpu", *TOY, "--stages", "table4", "--out", second, "--resume", pack)
    assert code == 0, output
    assert "table4: done" in output
    records = stored_records(second / "records")
    assert set(packed) <= set(records)
    assert {id.split("/")[3] for id in records} == {"1", "2", "3", "4"}
    assert all(records[id] == record for id, record in packed.items())
    log = (second / "log.txt").read_text()
    assert f"{4 - len(packed)} runs on" in log
    assert json.loads((second / "weights/manifest.json").read_text())["elasticity"]["epochs"] == 2
    assert "table4 | done" in (second / "summary.md").read_text()
    code, output = measure("gpu", *TOY, "--stages", "table4", "--out", second)
    assert "table4: done before" in output


def packed_records(out, scratch):
    if not (out / "pack.tar.gz").exists():
        return {}
    read_volumes(out / "pack.tar.gz", scratch)
    return stored_records(scratch / "records")


@pytest.mark.slow
def test_a_session_without_time_leaves_a_pack(tmp_path):
    code, output = measure("gpu", *TOY, "--minutes", 0, "--out", tmp_path)
    assert code == 0, output
    assert "skipped" in (tmp_path / "summary.md").read_text()  # the sanitizer, without CUDA
    assert (tmp_path / "pack.tar.gz").exists()
    assert not (tmp_path / "records").exists()
