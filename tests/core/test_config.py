"""Configurations say what is wrong with a value, and where."""

import re

import pytest
from pydantic import PositiveInt

from linearno.core.config import Config, override, read_yaml, write_yaml
from linearno.core.errors import UserError
from linearno.recipes import RECIPES
from linearno.run_config import RunConfig


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
        ("just words", "is not a configuration"),
        ("sed: 1", "did you mean 'seed'"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"config\.yaml.*{message}"):
        read_yaml(tmp_path / "config.yaml", Outer)


def refusal(call, *args) -> str:
    with pytest.raises(UserError) as caught:
        call(*args)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1500
    return message


def refusal_of_file(tmp_path, text: str) -> str:
    """What `read_yaml` says about a file with this text; the file is named."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    message = refusal(read_yaml, path, Outer)
    assert str(path) in message
    return message


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)  # a few hundred bytes that expand to 9⁸ strings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, r"line 2: the alias \*a is not supported; write the value out"),
        ("seed: 1\ninner: &a\n  depth: 2\ntag: *a\n", r"line 4: the alias \*a"),
        ("inner: &a {tag: *a}\n", r"line 1: the alias \*a"),  # refers to itself
        ("seed: 1\n<<: {seed: 2}\n", "line 2: the merge key << is not supported"),
        ("inner:\n  depth: 1\n  depth: 2\n", "line 3: the key 'depth' occurs twice"),
        ("1: a\n'1': b\n", "line 2: the key '1' occurs twice"),
        ("seed: 1\nseed: 1\n", "line 2: the key 'seed' occurs twice"),
        ("[" * 100_000, "nested too deeply"),
        ("- " * 100_000, "nested too deeply"),
        ("seed: 2001-13-45", "month"),
        ("seed: 1\ninner: {", "line 2: "),
        ("seed: !!python/object/apply:os.getcwd []", "line 1: could not determine a constructor"),
        (f"seed: {'x' * 2**20}", "larger than 1,048,576 bytes"),
    ],
)
def test_yaml_that_is_not_plain_values_is_refused_with_its_line(tmp_path, text, message):
    assert re.search(message, refusal_of_file(tmp_path, text))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{a: &a [1], b: *a}", r"--set inner\.tag=.*line 1: the alias \*a"),
        ("{<<: {a: 1}}", "merge key"),
        ("{a: 1, a: 2}", "occurs twice"),
        ("[" * 100_000, "nested too deeply"),
        ("2001-13-45", "month"),
    ],
)
def test_a_changed_value_is_read_as_strictly_as_a_file(value, message):
    assert re.search(message, refusal(override, Outer(), [f"inner.tag={value}"]))


@pytest.mark.parametrize(
    "text",
    [
        f"seed: {'x' * 100_000}",
        f"seed: [{', '.join(['[[[1]]]'] * 10_000)}]",
        f"inner: {{tag: 0x{'f' * 10_000}}}",  # more digits than Python converts to text
        f"inner: {{{'x' * 100_000}: 1}}",
        f"{'x' * 100_000}: 1",
        f'"{chr(92)}n{chr(92)}n": 1',
    ],
)
def test_a_long_value_is_shortened_in_the_message(tmp_path, text):
    assert len(refusal_of_file(tmp_path, text)) < 600


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    assert "cannot read" in refusal(read_yaml, tmp_path, Outer)


def test_every_recipe_is_written_as_plain_values(tmp_path):
    for name in RECIPES:
        config = RECIPES[name]()
        write_yaml(tmp_path / "config.yaml", config)
        assert read_yaml(tmp_path / "config.yaml", type(config)) == config


def test_a_config_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="frozen"):
        Outer().seed = 1


@pytest.mark.parametrize("name", ["[a]", "{a: 1}", "null", "3"])
def test_the_name_of_a_part_must_be_text(tmp_path, name):
    path = tmp_path / "config.yaml"
    path.write_text(f"recipe: x\ndata: {{name: {name}}}\nmodel: {{}}\ntraining: {{}}\n")
    assert "data.name: missing or not text" in refusal(read_yaml, path, RunConfig)
