"""How to cite: ``CITATION.cff``, and the same as BibTeX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from samebytes import strictyaml
from samebytes.errors import UsageError

FILE = "CITATION.cff"


def load(root: Path) -> dict[str, Any]:
    """Read a project's citation file.

    Raises
    ------
    UsageError
        Where it is missing, is not YAML or is not a mapping with authors and a title.
    """
    path = root / FILE
    if not path.is_file():
        raise UsageError(f"no {FILE} in {root}")
    try:
        found = strictyaml.load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(found, dict) or not found.get("authors") or not found.get("title"):
        raise UsageError(f"{path} needs authors and a title")
    return found


def bibtex(cited: dict[str, Any], url: str | None = None) -> str:
    """Return a citation file as BibTeX.

    Parameters
    ----------
    cited : dict
        What `load` returns.
    url : str or None
        Where it is published, if the file itself does not say.
    """
    released = str(cited.get("date-released", ""))
    fields = {
        "author": " and ".join(_author(author) for author in cited["authors"]),
        "title": "{" + cited["title"] + "}",
        "version": cited.get("version"),
        "year": released[:4] or None,
        "doi": cited.get("doi"),
        "url": cited.get("repository-code") or url,
    }
    lines = [f"  {name} = {{{value}}},\n" for name, value in fields.items() if value]
    return "@misc{samebytes,\n" + "".join(lines) + "}\n"


def _author(author: dict[str, str]) -> str:
    """Return a person as ``Family, Given``, and an organisation in braces, which keep it in one piece."""
    if "name" in author:
        return "{" + author["name"] + "}"
    return ", ".join(author[part] for part in ("family-names", "given-names") if part in author)
