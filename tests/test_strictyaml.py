from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from samebytes import bookbuild, citation, pagecheck, published, strictyaml
from samebytes.errors import UsageError


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1\nb: {a: 2}\nc: [{a: 3}, {a: 4}]\n",
        "1: a\n'1': b\n",
        "base: &base {a: 1, b: 2}\nmore: &more {<<: *base, a: 3}\nmost: {<<: *more, a: 4}\n",
        "? [a]\n: 1\n",
    ],
)
def test_what_has_no_key_twice_is_read_as_ever(text: str) -> None:
    try:
        expected = yaml.safe_load(text)
    except yaml.YAMLError as error:
        with pytest.raises(type(error)):
            strictyaml.load(text)
    else:
        assert strictyaml.load(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("why: a\nflags: {}\nwhy: b\n", "key 'why' is given twice, in line 1 and in line 3"),
        ('a:\n- b: {c: 1, "c": 2}\n', "key 'c' is given twice, in line 2 and in line 2"),
        ("1: a\n1: b\n", "key '1' is given twice"),
    ],
)
def test_a_key_that_is_given_twice_is_named_with_its_lines(text: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        strictyaml.load(text)
    assert str(caught.value).startswith(words)


def test_no_python_object_is_made() -> None:
    with pytest.raises(yaml.YAMLError):
        strictyaml.load("!!python/object/apply:os.getcwd []\n")


READERS: dict[str, Callable[[Path], object]] = {
    "CITATION.cff": citation.load,
    "_toc.yml": bookbuild.pages,
    "page.md": lambda root: pagecheck.check_sources(root, ["page"]),
    "published.yaml": lambda root: published.load(root / "published.yaml"),
}


@pytest.mark.parametrize("name", READERS)
def test_who_reads_a_file_names_it_and_the_key(tmp_path: Path, name: str) -> None:
    twice = "title: a\ntitle: b\n"
    cell = "```{code-cell} python\n1\n```\n"
    (tmp_path / name).write_text(f"---\n{twice}---\n{cell}" if name.endswith(".md") else twice)
    with pytest.raises(UsageError, match=rf"{re.escape(name)}.* is not valid YAML: key 'title' is given twice"):
        READERS[name](tmp_path)
