"""The archive to deposit: its members, its manifest, the same bytes twice."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT
from recordfactory import a_record
from samebytes import __version__, archive, record, summary
from samebytes.errors import SamebytesError

TOP = f"samebytes-{__version__}-records"


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one study of synthetic records, and records of this machine."""
    root = tmp_path / "project"
    for name in ("configs", "studies", "workloads"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("_config.yml", "LICENSE", "CITATION.cff"):
        shutil.copy(ROOT / name, root)
    monkeypatch.setenv("SAMEBYTES_ROOT", str(root))
    for study in ("mine", "quick"):
        for label in ("baseline", "ngram"):
            record.save(a_record(label), root / "results" / study / f"{label}.json")
    summary.write(root / "results" / "mine", summary.build(root / "results" / "mine"))
    (root / "results" / "mine" / ".ngram.json.half").touch()
    (root / "results" / "mine" / "logs").mkdir()
    (root / "results" / "mine" / "logs" / "ngram-0.log").write_text("a log")
    return root


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as found:
        return found.namelist()


def test_two_runs_give_the_same_bytes(house: Path, tmp_path: Path) -> None:
    first = archive.build(house, tmp_path / "one").read_bytes()
    for path in house.rglob("*"):
        os.utime(path, (1, 1))
    (house / "LICENSE").chmod(0o600)
    assert archive.build(house, tmp_path / "two").read_bytes() == first


def test_it_holds_what_was_measured_and_what_was_sent_and_nothing_of_this_machine(house: Path, tmp_path: Path) -> None:
    found = names(archive.build(house, tmp_path))
    assert all(name.startswith(f"{TOP}/") for name in found)
    inside = [name.removeprefix(f"{TOP}/") for name in found]
    assert {name for name in inside if name.startswith("results/")} == {
        f"results/mine/{name}" for name in ("baseline.json", "ngram.json", "summary.csv", "summary.json", "summary.md")
    }
    sent = {path.relative_to(ROOT).as_posix() for path in (ROOT / "workloads").glob("*/*.*")}
    assert sent <= set(inside)
    assert {"LICENSE", "CITATION.cff", "README.txt", "configs/ngram.yaml", "studies/quick.yaml"} <= set(inside)


def test_the_manifest_is_checked_by_the_usual_tool(house: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive.build(house, tmp_path)) as found:
        found.extractall(tmp_path)
    check = ("sha256sum", "--check", "--strict", archive.MANIFEST)
    done = subprocess.run(check, cwd=tmp_path / TOP, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    listed = [line.partition(": ")[0] for line in done.stdout.splitlines()]
    there = [path.relative_to(tmp_path / TOP).as_posix() for path in (tmp_path / TOP).rglob("*") if path.is_file()]
    assert sorted([*listed, archive.MANIFEST]) == sorted(there)
    (tmp_path / TOP / "results" / "mine" / "ngram.json").write_text("{}")
    assert subprocess.run(check, cwd=tmp_path / TOP, capture_output=True, timeout=60).returncode != 0


def test_a_table_that_is_not_what_its_records_say_stops_it(house: Path, tmp_path: Path) -> None:
    path = house / "results" / "mine" / "summary.md"
    path.write_text(path.read_text().replace("10.0", "12.0", 1))
    with pytest.raises(SamebytesError, match=r"mine: summary\.md:\d+: .*samebytes summary mine"):
        archive.build(house, tmp_path)
    assert not list(tmp_path.glob("*.zip"))


def test_without_records_there_is_nothing_to_archive(house: Path, tmp_path: Path) -> None:
    shutil.rmtree(house / "results" / "mine")
    with pytest.raises(SamebytesError, match="nothing to archive"):
        archive.build(house, tmp_path)


def test_the_committed_files_are_all_in_it() -> None:
    inside = {name: hashlib.sha256(content).hexdigest() for name, content in archive.members(ROOT)}
    committed = [path for pattern in ("*-*/*.json", "*-*/pro*/*.json") for path in (ROOT / "results").glob(pattern)]
    assert {path.parent.name for path in committed} >= {"probes", "profiles"}
    for path in committed:
        name = path.relative_to(ROOT).as_posix()
        assert inside[name] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "results/rtx5090-qwen3-32b-awq/published.yaml" in inside
