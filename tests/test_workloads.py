"""Prompts from files, and the prompts that come with the project."""

from __future__ import annotations

import ast
import hashlib
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from samebytes import workloads
from samebytes.errors import UsageError
from samebytes.validity import extract_code, passage

OURS = Path(__file__).parents[1] / "workloads"


def house(tmp_path: Path, **files: str | bytes) -> Path:
    """Write ``workload__name="text"`` as workload/name.md."""
    for key, content in files.items():
        workload, name = key.split("__")
        path = tmp_path / workload / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path


def ids(prompts: list[workloads.Prompt]) -> list[str]:
    return [prompt.id for prompt in prompts]


def test_text_is_the_file_without_its_last_newline_and_the_digest_is_the_files(tmp_path: Path) -> None:
    folder = house(tmp_path, rag__a="  two\nlines — ünïcode \n")
    (prompt,) = workloads.load(folder)
    assert prompt == workloads.Prompt(
        "rag/a", "rag", "  two\nlines — ünïcode ", hashlib.sha256((folder / "rag/a.md").read_bytes()).hexdigest()
    )


def test_order_is_known_workloads_then_others_by_name_then_files_by_id(tmp_path: Path) -> None:
    folder = house(
        tmp_path, zeta__a="1\n", alpha__a="1\n", creative__a="1\n", rag__b="1\n", rag__a="1\n", code_edit__a="1\n"
    )
    (folder / "rag" / "a-long.md").write_text("1\n")  # "a-long.md" sorts before "a.md", its id after
    (folder / "warmup").mkdir()
    (folder / ".ipynb_checkpoints").mkdir()
    assert ids(workloads.load(folder)) == [
        "code_edit/a", "rag/a", "rag/a-long", "rag/b", "creative/a", "alpha/a", "zeta/a",
    ]  # fmt: skip
    assert ids(workloads.load(folder, ["creative", "rag", "rag"], limit=2)) == ["rag/a", "rag/a-long", "creative/a"]


def test_long_prompts_come_only_by_name(tmp_path: Path) -> None:
    folder = house(tmp_path, rag__a="1\n", long_context__a="1\n")
    assert workloads.defaults(folder) == ["rag"]
    assert ids(workloads.load(folder)) == ["rag/a"]
    assert ids(workloads.load(folder, ["long_context", "rag"])) == ["rag/a", "long_context/a"]


def test_an_unknown_workload_is_refused_with_the_valid_ones(tmp_path: Path) -> None:
    folder = house(tmp_path, rag__a="1\n", creative__a="1\n", warmup__a="1\n")
    with pytest.raises(UsageError, match=r"unknown workload 'rags'. Did you mean 'rag'\? Valid: creative, rag"):
        workloads.load(folder, ["rags"])
    with pytest.raises(UsageError, match="unknown workload 'warmup'"):
        workloads.load(folder, ["warmup"])


def test_nothing_to_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder of workloads"):
        workloads.load(tmp_path / "missing")
    with pytest.raises(UsageError, match=r"no workload to load .*Valid: \(none\)"):
        workloads.load(tmp_path)
    with pytest.raises(UsageError, match="no warm-up prompts"):
        workloads.warmup(tmp_path)
    house(tmp_path, rag__a="1\n")
    with pytest.raises(UsageError, match=r"no workload to load .*Valid: rag"):
        workloads.load(tmp_path, [])
    with pytest.raises(UsageError, match=r"limit must be at least 1 .* not 0"):
        workloads.load(tmp_path, limit=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no prompts in .*/empty"):
        workloads.load(tmp_path)
    assert ids(workloads.load(tmp_path, ["rag"])) == ["rag/a"]  # what was not asked for is not read


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9\n", "is not UTF-8: byte 3"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"one\r\ntwo\r\n", "carriage returns"),
        (b"no newline", "must end in one newline"),
        (b"two newlines\n\n", "must end in one newline"),
        ("\ufeffmarked\n".encode(), "byte order mark"),
    ],
)
def test_a_file_that_is_no_prompt_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    folder = house(tmp_path, rag__good="1\n", rag__odd=content)
    with pytest.raises(UsageError, match=rf"rag/odd\.md.*{message}"):
        workloads.load(folder)


def test_other_files_in_a_workload_are_refused_but_hidden_ones_and_the_readme(tmp_path: Path) -> None:
    folder = house(tmp_path, rag__a="1\n", rag__README="about\n")
    (folder / "rag" / ".hidden").write_text("")
    (folder / "rag" / "a.check.yaml").write_text("kind: quote\n")
    (folder / "README.md").write_text("about\n")
    assert ids(workloads.load(folder)) == ["rag/a"]
    (folder / "rag" / "b.check.yaml").write_text("kind: quote\n")
    with pytest.raises(UsageError, match=r"b\.check\.yaml belongs to no prompt: b\.md is missing"):
        workloads.load(folder)
    (folder / "rag" / "b.check.yaml").rename(folder / "rag" / "b.txt")
    with pytest.raises(UsageError, match=r"b\.txt is neither a prompt"):
        workloads.load(folder)


@pytest.mark.parametrize("name", ["Upper", "a b", "a.b", "-a", "a--b"])
def test_a_name_that_makes_no_id_is_refused(tmp_path: Path, name: str) -> None:
    folder = house(tmp_path, rag__a="1\n")
    (folder / "rag" / f"{name}.md").write_text("1\n")
    with pytest.raises(UsageError, match=f"'{re.escape(name)}' is no name for an id"):
        workloads.load(folder)


# --- the prompts of this project ------------------------------------------------------------------------------------

PROMPTS = {prompt.id: prompt for prompt in workloads.load(OURS)}


def test_the_24_prompts_and_their_ids() -> None:
    assert list(PROMPTS) == [
        "code_edit/argument-log-encoding",
        "code_edit/docstrings-text-statistics",
        "code_edit/exception-bank-ledger",
        "code_edit/logging-backup-rotation",
        "code_edit/rename-class-inventory",
        "code_edit/rename-function-graph",
        "code_edit/separator-weather-table",
        "code_edit/type-hints-calendar",
        "rag/bakery-starter",
        "rag/city-market-statute",
        "rag/greenhouse-watering",
        "rag/lab-balance",
        "rag/library-loans",
        "rag/lighthouse-lamp",
        "rag/museum-opening",
        "rag/ship-log",
        "creative/description-night-train",
        "creative/dialogue-two-clocks",
        "creative/fable-heron-ferry",
        "creative/letter-from-a-cartographer",
        "creative/monologue-retired-clown",
        "creative/poem-first-frost",
        "creative/story-borrowed-umbrella",
        "creative/travelogue-invented-island",
    ]


def test_warm_up_prompts_are_enough_and_others_than_the_measured() -> None:
    warm = workloads.warmup(OURS)
    assert len(warm) >= 16
    assert all(prompt.workload == "warmup" for prompt in warm)
    everything = [*warm, *PROMPTS.values()]
    assert len({prompt.sha256 for prompt in everything}) == len({prompt.id for prompt in everything}) == len(everything)
    contents = [extract_code(p.text)[0] if "```" in p.text else p.text.split("</passage>")[0] for p in everything]
    assert len(set(contents)) == len(everything)


def test_prompts_are_short_enough_for_a_context_of_4096_tokens() -> None:
    # SmolLM2's tokenizer makes 3.1 to 4.6 characters of a token of these files; 2.5 is on the safe side.
    assert max(len(prompt.text) for prompt in [*PROMPTS.values(), *workloads.warmup(OURS)]) < 1200 * 2.5


@pytest.mark.parametrize("name", [name for name in PROMPTS if name.startswith("rag/")])
def test_passages_have_200_to_350_words(name: str) -> None:
    assert 200 <= len(passage(PROMPTS[name]).split()) <= 350


def code_of(name: str) -> str:
    return extract_code(PROMPTS[f"code_edit/{name}"].text)[0]


def namespace(name: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "edited"}
    exec(compile(code_of(name), name, "exec", dont_inherit=True), scope)
    return scope


@pytest.mark.parametrize("name", [name for name in PROMPTS if name.startswith("code_edit/")])
def test_code_files_have_40_to_60_lines_and_parse(name: str) -> None:
    code, _ = extract_code(PROMPTS[name].text)
    assert 40 <= len(code.splitlines()) <= 60
    assert ast.parse(code).body


def test_the_log_file_works(tmp_path: Path) -> None:
    scope = namespace("argument-log-encoding")
    (tmp_path / "a.log").write_text("t0 INFO up\n\nt1 ERROR disk is full\n")
    (tmp_path / "b.log").write_text("t2 INFO down\n")
    assert scope["summarize"](tmp_path) == ([("INFO", 2), ("ERROR", 1)], [("a.log", "t1", "disk is full")])
    with pytest.raises(ValueError, match="unknown level: LOUD"):
        scope["parse_line"]("t LOUD x")


def test_the_text_statistics_work() -> None:
    scope = namespace("docstrings-text-statistics")
    assert scope["report"]("The cat sat. The dog ran!") == {
        "words": 6, "sentences": 2, "word_length": 3.0, "sentence_length": 3.0, "richness": 0.83,
    }  # fmt: skip
    assert scope["most_common"]("a b a", 1) == [("a", 2)]
    assert scope["report"]("")["word_length"] == 0.0


def test_the_ledger_works() -> None:
    ledger = namespace("exception-bank-ledger")["Ledger"]()
    ledger.open_account("ann", Decimal(10))
    ledger.open_account("bob")
    ledger.transfer("ann", "bob", Decimal(4))
    assert (ledger.balance("ann"), ledger.balance("bob")) == (6, 4)
    for call in (
        lambda: ledger.withdraw("ann", 7),
        lambda: ledger.transfer("ann", "ann", 1),
        lambda: ledger.balance("x"),
    ):
        with pytest.raises(ValueError):
            call()


def test_the_backup_rotation_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rotate = namespace("logging-backup-rotation")["rotate"]
    source = tmp_path / "notes.txt"
    assert rotate(source, tmp_path / "old") is None
    source.write_text("one")
    for day in (1, 2, 3):
        rotate(source, tmp_path / "old", keep=2, moment=datetime(2030, 1, day))
    assert [path.name for path in sorted((tmp_path / "old").iterdir())] == [
        "notes-20300102-000000.txt", "notes-20300103-000000.txt",
    ]  # fmt: skip
    assert "removed notes-20300101-000000.txt\n2 copies kept" in capsys.readouterr().out


def test_the_inventory_works() -> None:
    scope = namespace("rename-class-inventory")
    stock = scope["load_stock"](["bolt:12:4\n", "\n", "bolt:12:6\n", "nut:5:2\n"])
    stock = scope["remove_stock"](stock, "bolt", 5)
    assert scope["total_value"](stock) == 12 * 5 + 5 * 2
    with pytest.raises(KeyError):
        scope["remove_stock"](stock, "gear", 1)


def test_the_graph_works() -> None:
    scope = namespace("rename-function-graph")
    graph = scope["build"]([("a", "b"), ("b", "c"), ("x", "y")])
    assert scope["route"](graph, "a", "c") == ["a", "b", "c"]
    assert (scope["distance"](graph, "a", "c"), scope["distance"](graph, "a", "x")) == (2, None)
    assert scope["components"](graph) == {frozenset("abc"), frozenset("xy")}
    assert set(scope["__all__"]) <= set(scope)


def test_the_weather_table_works() -> None:
    scope = namespace("separator-weather-table")
    text = "station,day,low,high,rain\nnorth,1,2.5,7.0,\nnorth,2,3.0,8.0,4.5\n"
    rows = scope["read_table"](text)
    assert scope["wettest"](rows) == 2
    assert scope["read_table"](scope["write_table"](rows)) == rows
    assert scope["has_header"](scope["write_table"](rows))
    with pytest.raises(ValueError, match="missing fields: high, rain"):
        scope["read_table"]("station,day,low\n")
    with pytest.raises(ValueError, match="expected 5 fields, found 2"):
        scope["split_line"]("a,b\n")


def test_the_calendar_works() -> None:
    scope = namespace("type-hints-calendar")
    friday = scope["parse_day"]("2030-05-31")
    assert friday == date(2030, 5, 31)
    assert scope["add_working_days"](friday, 1, {date(2030, 6, 3)}) == date(2030, 6, 4)
    days = scope["working_days"](friday, date(2030, 6, 4))
    assert {week: len(found) for week, found in scope["group_by_week"](days).items()} == {"2030-W22": 1, "2030-W23": 2}
    assert scope["overdue"]({"a": friday, "b": date(2030, 6, 9)}, date(2030, 6, 4)) == {"a": 4}
