"""Load and attacks on `linearno serve`, in a process of its own."""

import io
import itertools
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from numpy import ndarray

from benchmarks.cli.shared import OutOption, keep_record
from benchmarks.malicious_uploads import Upload, npz_bytes, uploads
from linearno import LinearNO
from linearno.cli.shared import console, user_errors
from linearno.core.errors import UserError
from linearno.core.randomness import numpy_generator
from linearno.data import Batch, FieldSpec, Scaler
from linearno.inference import Bundle, load
from linearno.meshes.config import MeshFields
from linearno.reproduce.records import new_record

START_SECONDS = 60.0
REPLY_SECONDS = 120.0
TOLERANCE = 1e-4  # of a reply, relative to the largest value; joined requests round differently
SMALL: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "slices": 8}
GRID = (16, 16)
LIMITS = ("--body", "16MB", "--seconds", "20")
MESH_KINDS = ("x-vtu", "x-vtp", "x-vtk")


class Server(NamedTuple):
    """A running service."""

    process: "subprocess.Popen[str]"
    port: int

    def resident_memory(self) -> int:
        """Bytes of the process and its readers in memory."""
        pids = [self.process.pid, *_children(self.process.pid)]
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * os.sysconf(
            "SC_PAGE_SIZE"
        )


@contextmanager
def service(run: Path, *options: str) -> Iterator[Server]:
    """`linearno serve` on a free port."""
    command = [sys.executable, "-m", "linearno", "serve", str(run), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"http://[^:]+:(\d+)", line):
                    yield Server(process, int(found[1]))
                    break
                if line.startswith("error:"):
                    raise UserError(line.removeprefix("error: ").strip())
        finally:
            process.terminate()


def serve_load(
    run: Annotated[Path, typer.Argument(help="run folder of a model on a fixed grid, such as demo/linearno")],
    requests: Annotated[int, typer.Option(min=1)] = 1000,
    concurrent: Annotated[int, typer.Option(min=1, help="requests at a time")] = 50,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: OutOption = None,
) -> None:
    """Send requests to a service and compare each reply with a direct prediction.

    Example:

      python -m benchmarks serve-load demo/linearno --out results
    """
    with user_errors():
        bundle = load(run)
        if bundle.spec.grid is None or len(bundle.spec.inputs) != 1 or bundle.coords is None:
            raise UserError(f"{run}: expected a run with one input on a fixed grid, such as demo/linearno")
        fields = _random_inputs(bundle, requests, seed)
        truths = bundle.predict(torch.from_numpy(fields), batch=16)[..., 0].numpy()
        with service(run) as server:
            began = time.perf_counter()
            with ThreadPoolExecutor(concurrent) as pool:
                results = list(pool.map(lambda field: _ask(server.port, bundle, field), fields))
            seconds = time.perf_counter() - began
            calls = _metric(server.port, "linearno_model_calls_total")
        lost = sum(values is None for values, _ in results)
        errors = [
            float(np.abs(values.reshape(-1) - truth).max() / np.abs(truth).max())
            for (values, _), truth in zip(results, truths, strict=True)
            if values is not None
        ]
        wrong = sum(error > TOLERANCE for error in errors)
        waits = sorted(wait for _, wait in results)
        details = {
            "requests": requests, "concurrent": concurrent, "lost": lost, "wrong": wrong,
            "largest_relative_difference": max(errors, default=0.0), "tolerance": TOLERANCE,
            "seconds": seconds, "model_calls": int(calls), "points": int(fields.shape[1]),
            "median_ms": 1e3 * statistics.median(waits), "p99_ms": 1e3 * waits[int(0.99 * len(waits))],
        }  # fmt: skip
        rate = requests / seconds
        console.print(f"{rate:.0f} requests/s, {lost} lost, {wrong} wrong, {calls:.0f} model calls")
        keep_record(new_record("serve/load", rate, "requests/s", seed=seed, details=details), out)


def serve_malicious(
    count: Annotated[int, typer.Option(min=1, help="uploads")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: OutOption = None,
) -> None:
    """Send malformed and malicious uploads to a service; each must be refused with a 4xx and one line.

    Example:

      python -m benchmarks serve-malicious --out results
    """
    with user_errors(), tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        mark = f"{scratch}/executed"
        runs = _small_runs(Path(scratch))
        arrays, meshes = (stack.enter_context(service(run, *LIMITS)) for run in runs)
        wave = list(itertools.islice(uploads("a", GRID, mark, seed), count))
        for upload in wave[:50]:  # readers start, caches fill
            send((meshes if upload.kind in MESH_KINDS else arrays).port, upload)
        before = arrays.resident_memory() + meshes.resident_memory()
        began, accepted = time.perf_counter(), []
        for upload in wave:
            server = meshes if upload.kind in MESH_KINDS else arrays
            status, body = send(server.port, upload)
            if not 400 <= status < 500 or body.count(b"\n") or not body.startswith(b'{"error":'):
                accepted.append(f"{upload.name}: {status}")
        seconds = time.perf_counter() - began
        good = _status(arrays.port, npz_bytes(a=np.zeros(GRID, np.float32)))
        after = arrays.resident_memory() + meshes.resident_memory()
        details = {
            "uploads": count, "kinds": len({upload.name for upload in wave}), "not_refused": accepted,
            "executed": Path(mark).exists(), "alive": good == 200, "seconds": seconds,
            "memory_before_mb": before / 1e6, "memory_after_mb": after / 1e6,
        }  # fmt: skip
        refused = count - len(accepted)
        console.print(f"{refused} of {count} refused; memory {before / 1e6:.0f} → {after / 1e6:.0f} MB")
        for line in accepted:
            console.print(line)
        keep_record(
            new_record("serve/malicious", refused, "uploads refused", seed=seed, details=details), out
        )


def send(port: int, upload: Upload) -> tuple[int, bytes]:
    """Status and body of the reply to an upload, sent byte by byte if it is slow."""
    lines = [f"POST {upload.path} HTTP/1.1", "host: localhost", f"content-type: application/{upload.kind}"]
    headers = {"content-length": str(len(upload.body))} | upload.headers
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection(("127.0.0.1", port), timeout=REPLY_SECONDS) as connection:
        connection.sendall("\r\n".join([*lines, "connection: close", "", ""]).encode())
        try:
            parts = [bytes([byte]) for byte in upload.body] if upload.slow else [upload.body]
            for part in parts:
                connection.sendall(part)
                time.sleep(upload.slow)
        except OSError:
            pass  # refused before the end of the upload
        reply = _receive(connection)
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def _receive(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def _random_inputs(bundle: Bundle, count: int, seed: int) -> ndarray:
    """Random fields (S, N, 1) with mean and deviation of the training data."""
    assert bundle.coords is not None
    noise = numpy_generator(seed).normal(size=(count, len(bundle.coords), 1))
    mean, std = (float(part.mean()) for part in (bundle.scaler.inputs.mean, bundle.scaler.inputs.std))
    return (mean + std * noise).astype(np.float32)


def _ask(port: int, bundle: Bundle, field: ndarray) -> tuple[ndarray | None, float]:
    """The reply to one request, None if it is lost, and the seconds that it took."""
    assert bundle.spec.grid is not None
    body, began = npz_bytes(**{bundle.spec.inputs[0]: field.reshape(bundle.spec.grid)}), time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=REPLY_SECONDS)
    try:
        connection.request("POST", "/predict", body, {"content-type": "application/x-npz"})
        reply = connection.getresponse()
        content, status = reply.read(), reply.status
    except OSError:
        return None, time.perf_counter() - began
    finally:
        connection.close()
    seconds = time.perf_counter() - began
    if status != 200:
        return None, seconds
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return file[bundle.spec.outputs[0]], seconds


def _status(port: int, body: bytes) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=REPLY_SECONDS)
    connection.request("POST", "/predict", body, {"content-type": "application/x-npz"})
    return connection.getresponse().status


def _metric(port: int, name: str) -> float:
    connection = HTTPConnection("127.0.0.1", port, timeout=REPLY_SECONDS)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def _small_runs(folder: Path) -> tuple[Path, Path]:
    """Untrained surrogates of arrays on a grid, and of meshes in a plane."""
    axes = [torch.linspace(0, 1, size) for size in GRID]
    grid = FieldSpec(coords=("x", "y"), inputs=("a",), outputs=("u",), grid=GRID, standardised=("inputs",))
    fields = MeshFields(coords=("x", "y"), targets=("u",), inputs=("a",))
    parts: list[tuple[FieldSpec, dict[str, Any]]] = [(grid, {}), (fields.spec, {"mesh_fields": fields})]
    for i, (spec, more) in enumerate(parts):
        torch.manual_seed(0)
        points = torch.cartesian_prod(*axes)
        data = Batch(points.expand(2, -1, -1), torch.randn(2, len(points), 1), torch.randn(2, len(points), 1))
        model = LinearNO(coords=2, inputs=1, outputs=1, **SMALL)
        bundle = Bundle(model, Scaler.fit(spec, data), spec, points if i == 0 else None, "test", 0, **more)
        bundle.save(folder / f"run{i}")
    return folder / "run0", folder / "run1"


def _children(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
