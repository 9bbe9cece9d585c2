"""Write a rollout as an animation: GIF, or MP4 if ffmpeg is installed."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linearno.core.atomic_io import write_atomically, write_bytes
from linearno.core.errors import UserError
from linearno.report.cases import FPS, RANKS, has_frames, rollout_case, shown_channels
from linearno.report.run_folder import read_run
from linearno.viz import gif_bytes, rollout_frames
from linearno.viz.encode import Pixels


def write_animation(folder: Path, out: Path, *, case: str = "median", fps: float = FPS) -> int:
    """Write an animation of truth, prediction and error of one case, and return the number of frames.

    If a frame has several fields, the first is shown for a rollout, else the last.

    Args:
        folder: run folder.
        out: .gif or .mp4 file.
        case: best, median or worst.
        fps: frames per second.
    """
    kind = out.suffix.lower()
    if kind not in (".gif", ".mp4"):
        raise UserError(f"{out}: expected a name that ends in .gif or .mp4")
    if kind == ".mp4" and shutil.which("ffmpeg") is None:
        raise UserError(f"{out}: MP4 needs ffmpeg, which is not installed; use a name that ends in .gif")
    run = read_run(folder, folder.name)
    if run.task.frame is None:
        raise UserError(f"{folder} is not a rollout: only a run that predicts frames can be animated")
    if not has_frames(run):
        raise UserError(f"{folder} contains no example cases; `linearno evaluate {folder}` writes them")
    frames = list(rollout_frames(rollout_case(run, RANKS.index(case), shown_channels(run)[-1])))
    if kind == ".gif":
        write_bytes(out, gif_bytes(frames, fps=fps))
    else:
        write_atomically(out, lambda temporary: _write_mp4(temporary, frames, fps))
    return len(frames)


def _write_mp4(path: Path, frames: Sequence[Pixels], fps: float) -> None:
    """Encode frames with ffmpeg, padded to even width and height as yuv420p requires."""
    height, width, _ = frames[0].shape
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"]
    target = [
        "-vf",
        "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white",
        "-pix_fmt",
        "yuv420p",
        "-f",
        "mp4",
        str(path),
    ]
    done = subprocess.run(
        ["ffmpeg", "-y", "-loglevel", "error", *source, *target],
        input=np.stack(frames).tobytes(),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        raise UserError(f"ffmpeg failed: {reason}; use a name that ends in .gif")
