"""Configurations say what is wrong with a value, and where."""

import pytest
from pydantic import PositiveInt

from linearno.core.config import Config, override, read_yaml, write_yaml
from linearno.core.errors import UserError


class Inner(Config):
    depth: PositiveInt = 8
    rate: float = 1e-3
    tag: str | None = None


class Outer(Config):
    seed: int = 0
    inner: Inner = Inner()


def test_a_dotted_name_changes_one_field_and_leaves_the_rest():
    changed = override(Outer(seed=3), ["inner.depth=4", "inner.rate=1e-4", "inner.tag=null"])
    assert changed == Outer(seed=3, inner=Inner(depth=4, rate=1e-4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("inner.depht=4", r"inner\.depht: no such field; did you mean 'depth'"),
        ("iner.depth=4", r"iner: no such field; did you mean 'inner'"),
        ("inner.depth=many", r"inner\.depth: .*integer.*, got 'many'"),
        ("inner.depth=-1", r"inner\.depth: .*greater than 0, got -1"),
        ("inner.depth.more=1", r"inner\.depth\.more: no such field"),
        ("inner.depth", "expected FIELD=VALUE"),
        ("inner.depth=[", "not valid YAML"),
    ],
)
def test_a_wrong_change_is_answered_in_one_line(change, message):
    with pytest.raises(UserError, match=message) as caught:
        override(Outer(), [change])
    assert "\n" not in str(caught.value)


def test_yaml_gives_back_what_was_written(tmp_path):
    config = Outer(seed=7, inner=Inner(rate=3e-5))
    write_yaml(tmp_path / "config.yaml", config)
    assert read_yaml(tmp_path / "config.yaml", Outer) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: [", "not valid YAML"),
        ("just words", "holds no configuration"),
        ("sed: 1", "did you mean 'seed'"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"config\.yaml.*{message}"):
        read_yaml(tmp_path / "config.yaml", Outer)


def test_a_config_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="frozen"):
        Outer().seed = 1
