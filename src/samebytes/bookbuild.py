"""Build the article: `jupyter-book` in a process of its own, and a look at what came out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from samebytes import pagecheck, strictyaml
from samebytes.errors import SamebytesError, UsageError
from samebytes.lock import locked

SHOWN = 10
"""So many problems are listed."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def build(root: Path) -> Path:
    """Build the pages of a project and return the first one's path.

    Warnings are errors. Pages whose text and records did not change since the last build are kept.

    Raises
    ------
    UsageError
        For a page whose cells would not run, and where another build of this project is at it.
    SamebytesError
        With the failing cell's own message, or with what is wrong with the pages.
    """
    program = Path(sys.executable).with_name("jupyter-book")
    if not program.exists():
        raise SamebytesError(f"no jupyter-book beside {sys.executable}: install samebytes[book]")
    pagecheck.check_sources(root, pages(root))
    output = root / "_build"
    with locked(output / ".book.lock", f"another build is writing {output}; wait for it"):
        done = _run(program, root)
        said = _ANSI.sub("", done.stdout)
        log = output / "book.log"
        log.write_text(said, encoding="utf-8")
        wrong = _failures(said, root) if done.returncode else pagecheck.problems(output / "html", pages(root))
        found = list(islice(wrong, SHOWN))
        if found:
            # A warning is given once, when its page is read: the next build has to read every page again.
            (output / ".doctrees" / "environment.pickle").unlink(missing_ok=True)
            listed = "\n  ".join(found)
            raise SamebytesError(f"the book was not built: {listed}\n  log: {log}")
    return output / "html" / f"{pages(root)[0]}.html"


def _run(program: Path, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), "build", "--warningiserror", "--keep-going", "--quiet", str(root)],
        cwd=root,
        env=os.environ | {"SAMEBYTES_ROOT": str(root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def pages(root: Path) -> list[str]:
    """Return the pages that ``_toc.yml`` lists, the first one first.

    Raises
    ------
    UsageError
        Where it is not YAML.
    """
    try:
        return list(_files(strictyaml.load((root / "_toc.yml").read_text(encoding="utf-8"))))
    except yaml.YAMLError as error:
        raise UsageError(f"_toc.yml is not valid YAML: {error}") from None


def _files(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (str(node[key]) for key in ("root", "file") if key in node)
        for value in node.values():
            yield from _files(value)
    elif isinstance(node, list):
        for item in node:
            yield from _files(item)


def _failures(said: str, root: Path) -> Iterator[str]:
    """Yield what went wrong: a cell's error with its page, else every warning and error, else the last line."""
    page = re.search(r"^myst_nb\.\S+\.ExecutionError: (.+)$", said, re.MULTILINE)
    if page is not None:
        cell = said.partition("\nThe above exception was the direct cause")[0].rstrip().rpartition("\n")[2]
        yield f"{os.path.relpath(page[1], root)}: {cell}"
        return
    lines = [line.strip().replace(f"{root}{os.sep}", "") for line in said.splitlines() if line.strip(" =\n")]
    found = [line for line in lines if re.search(r": (WARNING|ERROR|CRITICAL): |^(WARNING|ERROR): ", line)]
    yield from found or lines[-1:] or ["no output"]
