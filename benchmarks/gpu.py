"""`python -m benchmarks gpu`: measure and train on a GPU machine for some minutes, and pack the results."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gpu_stages import STAGES, Setup, Stage, Step, weight_steps
from benchmarks.volumes import read_volumes, write_volumes
from linearno.cli.shared import DeviceOption, console, user_errors
from linearno.core.atomic_io import folder_lock, read_json, writable_folder, write_json, write_text
from linearno.core.device import resolve_device
from linearno.core.durations import format_duration
from linearno.core.errors import UserError, look_up
from linearno.reproduce.plan import stored_records

PACK, LOG, STATE, SUMMARY = "pack.tar.gz", "log.txt", "state.json", "summary.md"
BUSY = "another session writes to {root}; choose another --out"
POLL_SECONDS = 1.0
GRACE_SECONDS = 60.0  # for a checkpoint, after SIGTERM
RESERVE_SECONDS = 30.0  # a command that takes --minutes stops this long before its limit
WEIGHTS_MINUTES = 3.0
SETTLED_SECONDS = 120.0  # a run whose checkpoint is older than this is not running
UNFINISHED = ("config.yaml", "history.jsonl", "checkpoint/*", "checkpoint/*/*")


def gpu(
    minutes: Annotated[float, typer.Option(min=0, help="time for everything")] = 25,
    out: Annotated[Path, typer.Option(help="folder of records, runs, weights and the pack")] = Path("gpu"),
    stages: Annotated[
        str | None, typer.Option(help=f"some of {', '.join(STAGES)}, separated by commas; all by default")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="STAGE=MINUTES", help="time for one stage; repeatable"),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="PACK.tar.gz", help="pack of an earlier session to continue")
    ] = None,
    device: DeviceOption = "cuda",
    toy: Annotated[
        bool, typer.Option("--toy", help="tiny sets and models, to try the command on a CPU")
    ] = False,
) -> None:
    """Run the stages in order until the time is over, and record as they go; the same command resumes.

    OUT/pack.tar.gz (with pack-2.tar.gz, … if it is larger than 15 MiB) has all records, half-precision
    bundles, a summary, and the checkpoint of an unfinished run; OUT/log.txt has all output. Both are complete
    after every finished run. --resume restores a pack into OUT on another machine.

    Examples:

      python -m benchmarks gpu --minutes 25 --stages table4,table6
      python -m benchmarks gpu --minutes 25 --resume pack.tar.gz
    """
    with user_errors():
        names = [_stage_name(name) for name in (stages.split(",") if stages else STAGES)]
        limits = dict(_parse_limit(text) for text in limit or [])
        resolve_device(device)  # an error before anything starts
        with folder_lock(writable_folder(out), busy=BUSY):
            if resume is not None:
                console.print(f"{read_volumes(resume, out)} files restored from {resume}", soft_wrap=True)
            session = Session(Setup(out, device, toy), deadline=time.monotonic() + 60 * minutes)
            session.run(names, limits)
        console.print(f"packed in {out / PACK}", soft_wrap=True)
        if session.stopped:
            raise typer.Exit(128 + session.stopped)


def _stage_name(name: str) -> str:
    look_up("stage", name, STAGES)
    return name


def _parse_limit(text: str) -> tuple[str, float]:
    name, _, minutes = text.partition("=")
    try:
        return _stage_name(name), float(minutes)
    except ValueError:
        raise UserError(f"--limit {text}: expected STAGE=MINUTES, such as tests=5") from None


@dataclass
class Session:
    """Runs steps as child processes and packs their results.

    Args:
        setup: where, and on which device.
        deadline: `time.monotonic()` at which everything stops.
        stopped: the signal that stopped the session; 0 if none did.
        packed: names, sizes and times of the files in the last pack.
        steps: result of each finished step by name.
    """

    setup: Setup
    deadline: float
    stopped: int = 0
    packed: list[tuple[str, int, int]] = field(default_factory=list)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, names: Sequence[str], limits: dict[str, float]) -> None:
        state = self.setup.out / STATE
        self.steps = read_json(state, how="remove it") if state.exists() else {}
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for name in names:
                self._run_stage(name, STAGES[name], limits.get(name, STAGES[name].minutes))
        finally:
            self._pack()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        self.stopped = number

    def _run_stage(self, name: str, stage: Stage, minutes: float) -> None:
        if (absent := stage.absent()) is not None:
            self._say(f"{name}: skipped, {absent}")
            self.steps[name] = {"state": f"skipped: {absent}"}
            return
        end = min(self.deadline, time.monotonic() + 60 * minutes)
        for step in stage.steps(self.setup):
            self._run_step(step, end)
        end = min(self.deadline, time.monotonic() + 60 * WEIGHTS_MINUTES)
        for step in weight_steps(self.setup):
            self._run_step(step, end)

    def _run_step(self, step: Step, end: float) -> None:
        left = end - time.monotonic()
        if self.stopped or left <= 0:
            return
        done = step.is_done() if step.is_done else self.steps.get(step.name, {}).get("state") == "done"
        if done:
            self._say(f"{step.name}: done before")
            self.steps[step.name] = {**self.steps.get(step.name, {}), "state": "done"}
            return
        command = list(step.command)
        if step.minutes_option:
            command += ["--minutes", f"{max(left - RESERVE_SECONDS, left / 2) / 60:.3f}"]
        began = time.monotonic()
        self._say(f"{step.name}: {' '.join(command)}")
        code = self._call(command, dict(step.environment), end)
        seconds = time.monotonic() - began
        finished = code == 0 and (step.is_done is None or step.is_done())
        state = (
            "done"
            if finished
            else "unfinished"
            if code in (0, -signal.SIGTERM, 130, 143)
            else f"exit code {code}"
        )
        earlier = self.steps.get(step.name, {}).get("seconds", 0.0)
        self.steps[step.name] = {"state": state, "seconds": round(earlier + seconds, 1)}
        self._say(f"{step.name}: {state}, {format_duration(seconds)}")
        self._pack()

    def _call(self, command: list[str], environment: dict[str, str], end: float) -> int:
        """Exit code of a child process; it gets SIGTERM at the end, and ends when this process does."""
        with (self.setup.out / LOG).open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
            kill_at = float("inf")
            while child.poll() is None:
                now = time.monotonic()
                if (self.stopped or now > end) and kill_at == float("inf"):
                    child.terminate()
                    kill_at = now + GRACE_SECONDS
                elif now > kill_at:
                    child.kill()
                self._pack(running=True)
                time.sleep(POLL_SECONDS)
            return child.wait()

    def _say(self, text: str) -> None:
        line = f"[{time.strftime('%H:%M:%S')}] {text}"
        console.print(line, soft_wrap=True, markup=False, highlight=False)
        with (self.setup.out / LOG).open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def _pack(self, *, running: bool = False) -> None:
        """Write the summary, state and pack, if a record, bundle or state has changed.

        While a child is running, its checkpoint changes and is not packed.
        """
        out = self.setup.out
        write_json(out / STATE, self.steps)
        kept = [*self.setup.records.rglob("*.json"), *self.setup.weights.rglob("*.*")]
        kept = sorted(path for path in kept if not path.name.startswith("."))
        now = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in kept]
        now.append((str(self.steps), 0, 0))
        if now == self.packed:
            return
        self.packed = now
        write_text(out / SUMMARY, self._summary())
        files = [
            out / SUMMARY,
            out / STATE,
            *kept,
            *self._unfinished_runs(SETTLED_SECONDS if running else 0.0),
        ]
        for path in write_volumes(out, files, out / PACK):
            self._say(f"not packed, as it is too large: {path}")

    def _unfinished_runs(self, age: float) -> list[Path]:
        """Files to continue runs that are not finished, the latest run first; checkpoints of this age."""
        times = {
            path.parent.parent: path.stat().st_mtime for path in self.setup.runs.glob("*/checkpoint/latest")
        }
        folders = [folder for folder in times if not (folder / "metrics.json").exists()]
        folders = [folder for folder in folders if time.time() - times[folder] >= age]
        folders.sort(key=lambda folder: -times[folder])
        found = [
            path for folder in folders for pattern in UNFINISHED for path in sorted(folder.glob(pattern))
        ]
        return [path for path in found if path.is_file() and not path.name.startswith(".")]

    def _summary(self) -> str:
        lines = ["# Session on a GPU", "", "| step | state | minutes |", "| --- | --- | --- |"]
        for name, result in self.steps.items():
            lines.append(f"| {name} | {result['state']} | {result.get('seconds', 0) / 60:.1f} |")
        lines += ["", "| record | value | unit | epochs | seed | minutes |", "| --- " * 6 + "|"]
        for record in stored_records(self.setup.records).values():
            facts = (record.id, f"{record.value:.4g}", record.unit, record.epochs, record.seed)
            minutes = "" if record.device_minutes is None else f"{record.device_minutes:.1f}"
            lines.append("| " + " | ".join("" if f is None else str(f) for f in (*facts, minutes)) + " |")
        return "\n".join(lines) + "\n"


def _end_with_parent() -> None:
    """Let the kernel send SIGTERM to this child process when its parent ends, even if that is killed."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
