"""How a reader runs a page: locally, and on Binder where a repository is configured."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import ROOT
from samebytes import runnable


@pytest.mark.parametrize(
    ("repository", "branch", "url"),
    [
        (
            "https://github.com/name/project",
            "HEAD",
            "https://mybinder.org/v2/gh/name/project/HEAD?urlpath=lab/tree/book/speed.md",
        ),
        (
            "https://github.com/name/project.git/",
            "a/branch",
            "https://mybinder.org/v2/gh/name/project/a%2Fbranch?urlpath=lab/tree/book/speed.md",
        ),
        (
            "https://forge.example/x/y",
            "main",
            "https://mybinder.org/v2/git/https%3A%2F%2Fforge.example%2Fx%2Fy/main?urlpath=lab/tree/book/speed.md",
        ),
    ],
)
def test_binder_opens_the_page_of_the_repository(repository: str, branch: str, url: str) -> None:
    assert runnable.binder_url(repository, branch, "book/speed.md") == url


class _App:
    def __init__(self, **options: Any) -> None:
        self.config = SimpleNamespace(html_theme_options=options)

    def add_css_file(self, name: str) -> None:
        pass

    def add_js_file(self, name: str, **how: str) -> None:
        pass


def body(app: Any) -> str:
    context: dict[str, Any] = {"body": '<h1>A page</h1><div class="cell docutils"></div>'}
    runnable.offer(app, "book/speed", "", context, None)
    return str(context["body"])


def test_the_button_is_there_where_a_repository_is_configured_beside_the_local_command() -> None:
    without = body(_App())
    assert "Binder" not in without
    assert "<code>make live</code>" in without
    with_one = body(_App(repository_url="https://github.com/name/project"))
    (link,) = re.findall(r'<a href="(https://[^"]+)">open it on Binder</a>', with_one)
    assert link == "https://mybinder.org/v2/gh/name/project/HEAD?urlpath=lab/tree/book/speed.md"
    assert "<code>make live</code>" in with_one


def test_the_configuration_says_where_to_name_the_repository() -> None:
    text = (ROOT / "_config.yml").read_text(encoding="utf-8")
    named = yaml.safe_load(text.replace("# repository_", "repository_"))
    options = named["sphinx"]["config"]["html_theme_options"]
    assert options["repository_url"] == "https://github.com/NAME/PROJECT"
    assert "Binder" in body(_App(**options))
