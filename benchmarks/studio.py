"""Latency of the studio in a browser: from a slider to the new picture, and up to the first page."""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.cli.shared import OutOption, keep_record
from linearno import LinearNO
from linearno.cli.shared import console, user_errors
from linearno.core.config import write_yaml
from linearno.core.errors import UserError
from linearno.core.optional_deps import require_extra
from linearno.data import AirfoilConfig, Batch, Scaler
from linearno.data.airfoil import airfoil_layout
from linearno.inference import Bundle
from linearno.models import MODELS
from linearno.reproduce.records import new_record
from linearno.run_config import RunConfig
from linearno.solvers.airfoil import grid_shape
from linearno.studio.designs import AirfoilDesign
from linearno.training import TrainingConfig

CHROMIUM = "/usr/bin/chromium"
BROWSER_OPTIONS = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox")
RESOLUTION = 221  # nodes along the airfoil: 11,271 points
MODEL = {"name": "linearno", "width": 64, "depth": 4, "heads": 4, "slices": 32, "stem": "conv"}
PAGE = {"width": 1360, "height": 900}
WAIT_MS = 60_000

HOOK = """for (const kind of [WebGLRenderingContext, WebGL2RenderingContext]) {
  for (const name of ["drawArrays", "drawElements"]) {
    const draw = kind.prototype[name];
    kind.prototype[name] = function (...args) {
      window.lastDraw = performance.now();
      return draw.apply(this, args);
    };
  }
}"""
CHANGE = """async (value) => {
  const slider = document.querySelector("input[data-parameter='θ6']");
  const state = window.trame.state, before = state.get("tick"), began = performance.now();
  slider.value = value;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  while (state.get("tick") === before) await frame();
  const answered = performance.now();
  while (performance.now() - Math.max(answered, window.lastDraw) < 400) await frame();
  return [answered - began, window.lastDraw - began];
}"""


@contextmanager
def studio(*runs: Path) -> Iterator[tuple[str, float]]:
    """The address of a studio in a process of its own, and the seconds that its start took."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "linearno", "studio", *map(str, runs), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"studio at (http\S+);", line):
                    yield found[1], time.perf_counter() - began
                    break
                if line.startswith("error:"):
                    raise UserError(line.removeprefix("error: ").strip())
        finally:
            process.kill()


def studio_latency(
    changes: Annotated[int, typer.Option(min=3, help="slider positions")] = 20, out: OutOption = None
) -> None:
    """Time a slider of the studio at 11,271 points, up to the last drawing call of the browser.

    The model is an untrained LinearNO of width 64 and depth 4 on the airfoil's grid. The browser is Debian's
    Chromium without a GPU.

    Example:

      python -m benchmarks studio-latency --out results
    """
    with user_errors(), tempfile.TemporaryDirectory() as scratch:
        require_extra("playwright", "dev")
        if not Path(CHROMIUM).exists():
            raise UserError(f"{CHROMIUM} does not exist; run: apt-get install chromium")
        run = Path(scratch) / "airfoil"
        bundle = _untrained_run(run)
        with studio(run) as (url, start):
            times, page = _measure(url, changes)
        answered, drawn = ([each[k] for each in times] for k in (0, 1))
        details = {
            "points": int(grid_shape(RESOLUTION)[0] * grid_shape(RESOLUTION)[1]), "model": MODEL,
            "changes": changes, "p90_ms": sorted(drawn)[int(0.9 * len(drawn))], "largest_ms": max(drawn),
            "answered_ms": statistics.median(answered), "processor_ms": _parts(run, bundle),
            "process_start_s": start, "first_page_s": page, "load_average": os.getloadavg()[0],
        }  # fmt: skip
        value = statistics.median(drawn)
        console.print(
            f"slider to picture: {value:.0f} ms; first page: {page:.2f} s; {details['processor_ms']}"
        )
        keep_record(new_record("studio/latency", value, "ms", details=details), out)


def _measure(url: str, changes: int) -> tuple[list[list[float]], float]:
    """Times (ms) of each change up to the reply and up to the last drawing, and of the first page (s)."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(BROWSER_OPTIONS))
        page = browser.new_page(viewport={"width": PAGE["width"], "height": PAGE["height"]})
        page.add_init_script(HOOK)
        began = time.perf_counter()
        page.goto(url)
        page.wait_for_function("() => window.lastDraw > 0", timeout=WAIT_MS)
        first = time.perf_counter() - began
        page.wait_for_timeout(1500)
        values = [0.045 * (-1) ** i * (1 + i) / (changes + 3) for i in range(changes + 3)]
        times = [page.evaluate(CHANGE, value) for value in values][3:]
        browser.close()
    return times, first


def _untrained_run(folder: Path) -> Bundle:
    """A run folder of an untrained model on the airfoil's grid, without data."""
    data = AirfoilConfig(root=folder / "data")
    spec = airfoil_layout(data).spec
    torch.manual_seed(0)
    settings = {name: value for name, value in MODEL.items() if name != "name"}
    model = LinearNO(coords=2, inputs=0, outputs=1, grid=spec.grid, **settings).eval()  # type: ignore[arg-type]
    coords = torch.from_numpy(AirfoilDesign(spec).coords())[None]
    scaler = Scaler.fit(spec, Batch(coords, None, torch.randn(1, coords.shape[1], 1)))
    bundle = Bundle(model, scaler, spec, None, "airfoil/linearno", 0)
    bundle.save(folder)
    config: dict[str, Any] = {"recipe": "airfoil/linearno", "data": data, "training": TrainingConfig()}
    write_yaml(folder / "config.yaml", RunConfig(**config, model=MODELS["linearno"].config.make(MODEL)))
    return bundle


def _parts(run: Path, bundle: Bundle) -> dict[str, float]:
    """Median processor times (ms) of the parts of an update in this process."""
    from linearno.studio.model import StudioModel
    from linearno.studio.panels import design_panels
    from linearno.studio.runs import open_runs

    model = StudioModel(open_runs([run], "cpu"))
    parts: dict[str, list[float]] = {"prediction": [], "geometry": [], "verdict": [], "panels": []}
    work = {
        "prediction": model.update, "geometry": model.geometry, "verdict": model.verdict,
        "panels": lambda: design_panels(model),
    }  # fmt: skip
    for i in range(7):
        model.set_parameter("θ6", 0.005 * i)
        for name, function in work.items():
            began = time.process_time()
            function()
            parts[name].append(1e3 * (time.process_time() - began))
    return {name: round(statistics.median(values), 1) for name, values in parts.items()}
