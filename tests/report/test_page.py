import json
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib import _pylab_helpers
from PIL import Image

from linearno.core.errors import UserError
from linearno.report import write_report

VOID = {"img", "meta"}


class Page(HTMLParser):
    """What a test asks of a page; tags that do not close fail at once."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words, self.style, self._open = "", "", []
        self.feed(text)
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] == ["style"]:
            self.style += data
        else:
            self.words += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def values(self, attribute):
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]


def report(folders, out) -> Page:
    write_report(folders, out)
    return Page(out.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def compared(two_runs, tmp_path_factory):
    return report(two_runs, tmp_path_factory.mktemp("out") / "report.html")


def test_nothing_is_loaded_from_outside(compared):
    assert all(address.startswith("data:image/png;base64,") for address in compared.values("src"))
    assert all(address.startswith("#") for address in compared.values("href"))
    assert {"script", "link", "iframe", "object"}.isdisjoint(name for name, _ in compared.tags)
    assert "url(" not in compared.style
    assert "@import" not in compared.style


def test_every_link_leads_somewhere_and_every_heading_has_an_anchor(compared):
    anchors = compared.values("id")
    assert len(set(anchors)) == len(anchors)
    assert {f"#{anchor}" for anchor in anchors} == set(compared.values("href"))


def test_every_picture_says_what_it_shows(compared):
    texts = [image.get("alt") for image in compared.all("img")]
    assert all(texts)
    assert len(set(texts)) == len(texts) == 3 + 2 * (3 + 4)
    assert len(compared.all("figcaption")) == len(texts)


def test_several_runs_share_one_page_with_their_numbers(compared, two_runs):
    for folder in two_runs:
        metrics = json.loads((folder / "metrics.json").read_text())
        assert folder.name in compared.words
        for which in ("mean", "median", "max"):
            assert f"{metrics['relative_l2'][which]:.4g}" in compared.words
    for fact in ("0123456789ab", "Example CPU, Linux", "123,456", "test split, 50 samples", "20 of 20"):
        assert fact in compared.words


def test_the_page_fits_a_phone_and_the_dark(compared):
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in compared.all("meta")
    assert "prefers-color-scheme: dark" in compared.style
    assert len(compared.all("table")) == sum(box.get("class") == "scroll" for box in compared.all("div"))


def test_the_same_runs_give_the_same_page(make_run, tmp_path):
    folder = make_run(tmp_path / "run", without=("figures/cases.npz",))
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    for page in pages:
        write_report([folder], page)
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_text_from_files_is_escaped(make_run, tmp_path):
    evil = '<script>alert("x")</script>'
    folder = make_run(tmp_path / "a<b>&$c$_{", recipe=evil, without=("figures/cases.npz",))
    page = report([folder], tmp_path / "report.html")
    assert not page.all("script")
    assert evil in page.words
    assert "a<b>&$c$_{" in page.words


@pytest.mark.parametrize(
    "missing",
    [
        ("model.json",),
        ("config.yaml", "figures/cases.npz"),
        ("metrics.json", "figures/cases.npz"),
        ("per_sample.csv", "figures/cases.npz"),
        ("history.jsonl", "figures/cases.npz"),
        ("model.json", "metrics.json", "history.jsonl", "per_sample.csv", "figures/cases.npz"),
    ],
    ids=lambda missing: missing[0] if len(missing) < 5 else "all but config.yaml",
)
def test_an_unfinished_run_is_reported_as_far_as_it_went(make_run, tmp_path, missing):
    page = report([make_run(tmp_path / "half", without=missing)], tmp_path / "report.html")
    assert "half" in page.words
    for name in missing:
        assert f"no {name}" in page.words


def test_runs_of_one_name_are_distinguished(make_run, tmp_path):
    folders = [make_run(tmp_path / kind / "seed0", without=("figures/cases.npz",)) for kind in ("a", "b")]
    page = report([*folders, folders[0]], tmp_path / "report.html")
    assert {"a/seed0", "b/seed0"} <= {text for text in page.words.split() if "seed0" in text}
    assert sum(anchor.startswith("run-") and anchor.count("-") == 1 for anchor in page.values("id")) == 2


def test_many_runs_become_rows_of_the_summary(make_run, tmp_path):
    light = ("figures/cases.npz", "history.jsonl", "per_sample.csv")
    folders = [make_run(tmp_path / f"run{i}", without=light) for i in range(5)]
    page = report(folders, tmp_path / "report.html")
    assert "5 runs compared" in page.words


def test_scattered_points_without_input_fields_or_slices(make_run, tmp_path):
    folder = make_run(tmp_path / "mesh", grid=None)
    path = folder / "figures" / "cases.npz"
    with np.load(path) as disk:
        kept = {name: disk[name] for name in ("sample", "error", "coords", "targets", "predictions")}
    np.savez(path, **kept)
    page = report([folder], tmp_path / "report.html")
    assert len(page.all("img")) == 2 + 3
    assert "input the points" in page.all("img")[-1]["alt"]


@pytest.mark.slow
def test_a_page_of_published_size_stays_small(make_run, tmp_path):
    """85×85 points, 8 layers of 8 heads: two such runs must stay below 4 MB."""
    write_report([make_run(tmp_path / "big", grid=(85, 85), heads=(8, 8))], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 2e6


def test_a_page_is_written_whole_or_not_at_all(make_run, tmp_path, monkeypatch):
    folder, out = make_run(tmp_path / "run", without=("figures/cases.npz",)), tmp_path / "out" / "report.html"
    out.parent.mkdir()
    out.write_text("the old page")

    def fail(*paths):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UserError, match="no space left"):
        write_report([folder], out)
    assert list(out.parent.iterdir()) == [out]
    assert out.read_text() == "the old page"


def test_no_figure_stays_open(compared):
    assert _pylab_helpers.Gcf.get_num_fig_managers() == 0


@pytest.mark.slow
def test_the_pictures_of_a_page_are_small_files_too(two_runs, tmp_path):
    written = write_report(two_runs, tmp_path / "page.html", figures=tmp_path / "figures")
    pictures = Page((tmp_path / "page.html").read_text()).all("img")
    assert [path.name for path in written] == sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert len(written) == len(pictures)
    assert written[0].name == "01-loss-and-learning-rate-against-epoch.png"
    for path in written:
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert image.width <= 1000
