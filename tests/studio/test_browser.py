"""The studio in Debian's Chromium, driven by playwright, which `make studio-test` installs."""

import io
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright", reason="the package playwright is not installed: run make studio-test")

from playwright.sync_api import sync_playwright

from benchmarks.studio import BROWSER_OPTIONS, CHROMIUM, studio
from linearno.studio.model import StudioModel
from tests.patience import PATIENCE

NO_BROWSER = "the package chromium is not installed: apt-get install chromium"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=NO_BROWSER),
]
FRESH = "(before) => window.trame.state.get('tick') > before"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(BROWSER_OPTIONS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def addresses(darcy_folders, airfoil_folder, cases_folder):
    with (
        studio(*darcy_folders) as (darcy, _),
        studio(airfoil_folder) as (airfoil, _),
        studio(cases_folder) as (cases, _),
    ):
        yield {"darcy": darcy, "airfoil": airfoil, "cases": cases}


class Page:
    """A page of the studio and the errors that it logged."""

    def __init__(self, browser, address):
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.page.set_default_timeout(1e3 * PATIENCE / 5)
        self.errors, self.foreign = [], []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "request",
            lambda r: None if r.url.startswith((address, "data:", "blob:")) else self.foreign.append(r.url),
        )
        self.page.goto(address)
        self.page.wait_for_selector("[data-panel='0'] canvas")
        self.page.wait_for_timeout(1500)

    def after(self, action):
        """Act, and wait until the page has changed and is drawn."""
        before = self.page.evaluate("window.trame.state.get('tick')")
        action()
        self.page.wait_for_function(FRESH, arg=before)
        self.page.wait_for_timeout(800)

    def picture(self, panel=0):
        """Pixels of a panel's view."""
        from PIL import Image

        content = self.page.locator(f"[data-panel='{panel}'] .stage").screenshot()
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)

    def quantity(self, name):
        row = self.page.locator("[data-test=quantities] tr", has_text=name)
        return float(row.locator("td").nth(1).inner_text())

    def state(self, key):
        return self.page.evaluate(f"window.trame.state.get({key!r})")


@pytest.fixture
def open_page(browser, addresses):
    pages = []

    def open_(name):
        pages.append(Page(browser, addresses[name]))
        return pages[-1]

    yield open_
    for page in pages:
        page.page.close()


def test_all_pages_load_without_errors_and_without_other_sites(open_page):
    page = open_page("darcy")
    for name in ("inside", "trust", "runs", "design"):  # the design stays
        page.after(lambda name=name: page.page.click(f"[data-page={name}]"))
        assert page.page.locator("[data-test=error]").count() == 0
        page.page.wait_for_timeout(500)
    assert page.errors == []
    assert [url for url in page.foreign if "127.0.0.1" not in url and "localhost" not in url] == []


def test_a_slider_changes_the_picture(open_page):
    page = open_page("airfoil")
    before = page.picture()
    slider = page.page.locator("input[data-parameter='θ6']")
    page.after(lambda: slider.fill("0.05"))
    changed = np.abs(page.picture() - before).max(axis=-1) > 24
    assert 0.01 < changed.mean() < 0.99
    assert not np.abs(page.picture() - page.picture()).any()


def test_a_page_opened_later_shows_the_same_picture(open_page):
    first = open_page("airfoil")
    first.after(lambda: first.page.locator("input[data-parameter='θ6']").fill("-0.05"))
    assert not np.abs(open_page("airfoil").picture() - first.picture()).any()


def test_a_dragged_control_point_changes_lift_as_the_api_says(open_page, airfoil_runs):
    page = open_page("airfoil")
    page.after(lambda: page.page.get_by_text("Straight").click())
    handle = page.page.locator("[data-handle='θ6'] .target").bounding_box()
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2

    def drag():
        page.page.mouse.move(x, y)
        page.page.mouse.down()
        page.page.mouse.move(x, y - 12, steps=3)
        page.page.mouse.up()

    page.after(drag)
    height = next(p["value"] for p in page.state("parameters") if p["name"] == "θ6")
    assert height > 0.01
    model = StudioModel(airfoil_runs)
    straight = model.quantities()[0]["surrogate"]
    model.set_parameter("θ6", height)
    assert page.quantity("lift coefficient") == float(model.quantities()[0]["surrogate"]) != float(straight)


def test_the_brush_paints(open_page):
    page = open_page("darcy")
    page.after(lambda: page.page.get_by_text("All low").click())
    before, share = page.picture(1), page.quantity("permeable share")
    stage = page.page.locator("[data-panel='0'] .stage").bounding_box()
    x, y = stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2
    page.page.mouse.move(x, y)
    page.after(page.page.mouse.down)
    page.page.mouse.move(x + 40, y, steps=4)
    page.page.mouse.up()
    page.page.wait_for_timeout(800)
    assert page.quantity("permeable share") > share == 0
    assert (np.abs(page.picture(1) - before) > 24).any()


def test_solve_shows_solver_and_difference(open_page):
    page = open_page("darcy")
    page.page.click("[data-test=solve]")
    page.page.wait_for_selector("[data-panel='3']")
    titles = [panel["title"] for panel in page.state("panels")]
    assert titles[-2:] == ["Solver", "Surrogate − solver"]


def test_an_uploaded_mesh_is_shown(open_page, tmp_path):
    from tests.meshes.mesh_examples import plane

    plane(8, hole=True).save(tmp_path / "mine.vtu")
    page = open_page("cases")
    page.after(lambda: page.page.set_input_files("[data-test=upload]", tmp_path / "mine.vtu"))
    assert page.state("case_name") == "upload: mine.vtu"
    (tmp_path / "broken.vtu").write_bytes(b"<VTKFile")
    page.after(lambda: page.page.set_input_files("[data-test=upload]", tmp_path / "broken.vtu"))
    message = page.page.locator("[data-test=error]").inner_text()
    assert "broken.vtu" in message
    assert "Traceback" not in message


def test_a_value_outside_the_training_range_shows_the_warning(open_page):
    page = open_page("airfoil")
    page.after(lambda: page.page.get_by_text("Straight").click())
    assert page.page.locator("[data-test=trust]").get_attribute("data-level") == "inside"
    page.after(lambda: page.page.locator("input[data-parameter='θ6']").fill("0.08"))
    banner = page.page.locator("[data-test=trust]")
    assert banner.get_attribute("data-level") == "outside"
    assert "outside the training range" in banner.inner_text()


def test_pages_fit_the_width_of_a_tablet_in_both_themes(open_page):
    page = open_page("darcy")
    page.page.set_viewport_size({"width": 800, "height": 1100})
    page.after(lambda: page.page.click("[data-test=theme]"))
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 800
    assert page.state("theme") == "dark"
    assert page.picture(1)[2, 2].max() < 60
    page.after(lambda: page.page.click("[data-test=theme]"))


def test_the_keyboard_moves_a_control_point(open_page):
    page = open_page("airfoil")
    page.after(lambda: page.page.get_by_text("Straight").click())
    page.page.locator("[data-handle='θ7']").focus()
    page.after(lambda: page.page.keyboard.press("ArrowUp"))
    height = next(p["value"] for p in page.state("parameters") if p["name"] == "θ7")
    assert height == pytest.approx(0.004)


def test_what_is_shown_is_downloaded(open_page, tmp_path):
    page = open_page("darcy")
    for key, start in (("png", b"\x89PNG"), ("vtu", b"<?xml")):
        with page.page.expect_download() as download:
            page.page.click(f"[data-test={key}]")
        assert Path(download.value.path()).read_bytes().startswith(start)
