"""The documentation builds without a warning, and its pages load nothing from other hosts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(https?:)?//""")
STYLESHEET = re.compile(r"""<link[^>]*rel=["']?(?:stylesheet|preconnect)[^>]*href=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_every_page_of_the_documentation_is_built(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages <= built


def test_pages_load_nothing_from_other_hosts(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not LOADED.search(text), page
        assert not STYLESHEET.search(text), page


def test_the_reference_shows_models_with_their_arguments(site):
    text = (site / "reference" / "models.html").read_text(encoding="utf-8")
    assert "Linear attention neural operator" in text
    assert "mlp_ratio" in text
