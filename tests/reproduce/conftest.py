import pytest

from tests.reproduce.small_runs import run_all


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """All rows of table 4 on a tiny set."""
    out = tmp_path_factory.mktemp("reproduce")
    run_all("table4", out)
    return out
