"""Was the edit made, is the quotation verbatim, does the answer loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebytes import validity, workloads
from samebytes.errors import UsageError
from samebytes.validity import Validity, check, extract_code, find_loop, load_check

OURS = Path(__file__).parents[1] / "workloads"
PROMPTS = {prompt.id: prompt for prompt in workloads.load(OURS)}
CODE = [name for name in PROMPTS if name.startswith("code_edit/")]
RAG = [name for name in PROMPTS if name.startswith("rag/")]


def original(name: str) -> str:
    return extract_code(PROMPTS[f"code_edit/{name}"].text)[0]


def fenced(code: str) -> str:
    return f"```python\n{code}```"


def judge(prompt_id: str, text: str, finish_reason: str | None = "stop") -> Validity:
    return check(PROMPTS[prompt_id], load_check(OURS, prompt_id), text, finish_reason)


def judge_code(name: str, code: str) -> Validity:
    return judge(f"code_edit/{name}", fenced(code))


# --- the right answer to each code prompt, made by program from the original ------------------------------------------


def with_encoding(code: str) -> str:
    for old, new in {
        "def read_lines(path)": 'def read_lines(path, encoding="utf-8")',
        "open(path)": "open(path, encoding=encoding)",
        "def count_levels(path)": 'def count_levels(path, encoding="utf-8")',
        "def first_error(path)": 'def first_error(path, *, encoding="utf-8")',
        " read_lines(path)": " read_lines(path, encoding)",
        "def summarize(folder)": 'def summarize(folder, encoding="utf-8")',
        " first_error(path)\n": " first_error(path, encoding=encoding)\n",
        "(count_levels(path))": "(count_levels(path, encoding))",
    }.items():
        assert old in code
        code = code.replace(old, new)
    return code


def with_docstrings(code: str) -> str:
    return re.sub(r"^(def (\w+).*:)$", r'\1\n    """Return \2."""', code, flags=re.MULTILINE)


def with_ledger_error(code: str) -> str:
    code = code.replace("ValueError", "LedgerError")
    return code.replace("class Ledger:", "class LedgerError(Exception):\n    pass\n\n\nclass Ledger:")


def with_logger(code: str) -> str:
    code = code.replace("import shutil", "import logging\nimport shutil").replace("print(", "logger.info(")
    return code.replace("KEEP = 5", "logger = logging.getLogger(__name__)\n\nKEEP = 5")


def with_semicolons(code: str) -> str:
    return code.replace('","', '";"')


def with_annotations(code: str) -> str:
    """Annotate everything with object: what the hints say is not checked."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = ast.Name("object")
            for arg in node.args.args:
                arg.annotation = ast.Name("object")
    return "from collections.abc import Iterable\n" + ast.unparse(tree) + "\n"


EDITS: dict[str, Callable[[str], str]] = {
    "argument-log-encoding": with_encoding,
    "docstrings-text-statistics": with_docstrings,
    "exception-bank-ledger": with_ledger_error,
    "logging-backup-rotation": with_logger,
    "rename-class-inventory": lambda code: re.sub(r"\bItem\b", "StockItem", code),
    "rename-function-graph": lambda code: re.sub(r"\bwalk\b", "breadth_first", code),
    "separator-weather-table": with_semicolons,
    "type-hints-calendar": with_annotations,
}


def edited(name: str) -> str:
    return EDITS[name](original(name))


def test_every_prompt_but_the_creative_ones_has_a_check() -> None:
    assert [name for name in PROMPTS if load_check(OURS, name) is None] == [
        name for name in PROMPTS if name.startswith("creative/")
    ]
    assert [f"code_edit/{name}" for name in EDITS] == CODE


@pytest.mark.parametrize("name", EDITS)
def test_the_asked_edit_is_valid(name: str) -> None:
    assert judge_code(name, edited(name)) == Validity("valid", finish_reason="stop")


@pytest.mark.parametrize("name", EDITS)
def test_formatting_and_comments_do_not_count(name: str) -> None:
    code = ast.unparse(ast.parse(edited(name))) + "\n# done\n"
    assert judge_code(name, code).status == "valid"


@pytest.mark.parametrize("name", EDITS)
def test_the_file_as_it_was_is_invalid(name: str) -> None:
    assert judge_code(name, original(name)).status == "invalid"


@pytest.mark.parametrize("name", EDITS)
def test_a_file_cut_off_after_any_statement_is_invalid(name: str) -> None:
    code = edited(name)
    lines = code.splitlines(keepends=True)
    for node in ast.parse(code).body[:-1]:
        assert node.end_lineno is not None
        assert judge_code(name, "".join(lines[: node.end_lineno])).status == "invalid"


@pytest.mark.parametrize("name", EDITS)
def test_damage_to_any_line_of_code_is_noticed(name: str) -> None:
    """Deleting a line leaves a file that does not parse or is another; only blank lines and comments do not matter."""
    code = edited(name)
    lines = code.splitlines(keepends=True)
    for index, line in enumerate(lines):
        content = line.strip()
        harmless = not content or content.startswith("#")
        if name == "type-hints-calendar":
            harmless |= content.startswith("from collections.abc")
        damaged = "".join(lines[:index] + lines[index + 1 :])
        assert (judge_code(name, damaged).status == "valid") == harmless, line


@pytest.mark.parametrize(
    ("name", "fix", "reason"),
    [
        ("rename-function-graph", ("in breadth_first(graph, start)}\n    if", "in walk(graph, start)}\n    if"),
         "'walk' is left on line 42: parents = {node: parent for node, parent, _ in walk(graph, start)}"),
        ("rename-function-graph", ("# breadth_first gives", "# walk gives"),
         "'walk' is left on line 41: # walk gives each node's parent, so follow them back from the goal"),
        ("rename-function-graph", ("; breadth_first does", "; bfs does"),
         "the module's docstring is not as asked: expected "),
        ("rename-class-inventory", ("isinstance(known, StockItem)", "isinstance(known, Item)"),
         "'Item' is left on line 33: if not isinstance(known, Item):"),
        ("separator-weather-table", ('split(";")', 'split(",")'),
         "split_line is not as asked: expected \"parts = line.rstrip('\\\\n').split(';')\", found"),
        ("separator-weather-table", ('", ".join', '"; ".join'), "read_table is not as asked"),
        ("docstrings-text-statistics", ('    """Return most_common."""\n', ""), "most_common has no docstring"),
        ("docstrings-text-statistics", ('"""Return report."""', '" "'), "report has no docstring"),
        ("docstrings-text-statistics", ("count=5", "count=10"), "most_common is not as asked"),
        ("type-hints-calendar", ("def week_label(day: object) -> object", "def week_label(day: object)"),
         "week_label: the return value has no annotation"),
        ("type-hints-calendar", ("(due_dates: object, today: object)", "(due_dates: object, today)"),
         "overdue: parameter 'today' has no annotation"),
        ("type-hints-calendar", ("from collections.abc import Iterable", "import os"), "import os was added"),
        ("argument-log-encoding", ("open(path, encoding=encoding)", "open(path)"),
         "read_lines does not pass 'encoding' on to open"),
        ("argument-log-encoding", ('summarize(folder, encoding="utf-8")', 'summarize(folder, encoding="latin-1")'),
         "summarize: the default of 'encoding' is not 'utf-8'"),
        ("argument-log-encoding", ('count_levels(path, encoding="utf-8")', "count_levels(path, encoding)"),
         "count_levels: the default of 'encoding' is not 'utf-8'"),
        ("argument-log-encoding", ('first_error(path, *, encoding="utf-8")', "first_error(path)"),
         "first_error has no parameter 'encoding'"),
        ("exception-bank-ledger", ('raise LedgerError("a deposit', 'raise ValueError("a deposit'),
         "Ledger.deposit is not as asked"),
        ("exception-bank-ledger", ("class LedgerError(Exception)", "class LedgerError(ValueError)"),
         "'class LedgerError(Exception):' is missing"),
        ("exception-bank-ledger", ("    pass\n", "    pass\n\n\nlimit = 5\n"), "limit was added"),
        ("logging-backup-rotation", ("logger = logging.getLogger(__name__)\n", ""), "logger was not added"),
        ("logging-backup-rotation", ('logger.info(f"removed', 'print(f"removed'), "prune is not as asked"),
        ("logging-backup-rotation", ("import shutil\n", ""), "import shutil is missing"),
    ],
)  # fmt: skip
def test_an_edit_that_is_not_quite_right_is_invalid_and_says_where(
    name: str, fix: tuple[str, str], reason: str
) -> None:
    code = edited(name)
    assert code.count(fix[0]) == 1
    result = judge_code(name, code.replace(*fix))
    assert result.status == "invalid"
    assert any(found.startswith(reason) for found in result.reasons), result.reasons


def test_functions_in_another_order_are_another_file() -> None:
    code = edited("rename-function-graph")
    head, tail = code.split("def distance", 1)
    distance, rest = ("def distance" + tail).split("def route", 1)
    result = judge_code("rename-function-graph", f"{head}def route{rest}\n\n{distance}")
    assert result.reasons == ("the order of the statements was changed",)


def test_an_added_class_may_have_methods() -> None:
    code = edited("exception-bank-ledger")
    code = code.replace("    pass\n", '    """No such money."""\n\n    def __str__(self):\n        return "no"\n', 1)
    assert judge_code("exception-bank-ledger", code).status == "valid"


def test_code_that_does_not_parse_says_where() -> None:
    result = judge_code("rename-function-graph", "x = 1\ndef broken(:\n")
    assert result.reasons == ("the code does not parse: invalid syntax (line 2)",)
    assert judge_code("rename-function-graph", "x = '\0'\n").status == "invalid"


@pytest.mark.parametrize(
    "code", ["x = " + "1 + " * 3000 + "1\n", "x = " + "(" * 3000 + "1\n", "x = " + "not " * 5000 + "1\n"]
)
def test_an_answer_that_loops_inside_an_expression_is_invalid_not_an_error(code: str) -> None:
    assert judge_code("rename-function-graph", code).status == "invalid"


def test_an_invalid_escape_in_an_answer_warns_nobody() -> None:
    code = edited("separator-weather-table").replace('"station": row["station"]', '"station": row["\\station"]')
    assert "convert is not as asked" in judge_code("separator-weather-table", code).reasons[0]


@pytest.mark.parametrize(
    ("wrap", "notes"),
    [
        ("```python\n{}```\n", ()),
        ("```\n{}```", ()),
        ("~~~~ py\n{}~~~~~\n", ()),
        ("Here it is:\n\n```python\n{}```\n", ("text around the fenced block",)),
        ("```python\n{}```\nI renamed it.\n", ("text around the fenced block",)),
        ("```python\n{}", ("the fenced block is not closed",)),
        ("{}", ("no fenced block",)),
    ],
)
def test_the_wrapping_of_the_code_is_a_note(wrap: str, notes: tuple[str, ...]) -> None:
    code = edited("rename-function-graph")
    result = judge("code_edit/rename-function-graph", wrap.format(code))
    assert (result.status, result.notes) == ("valid", notes)


def test_an_answer_cut_off_says_so() -> None:
    code = edited("rename-function-graph")[:400]
    result = judge("code_edit/rename-function-graph", f"```python\n{code}", "length")
    assert result.status == "invalid"
    assert result.notes == ("cut off at max_tokens", "the fenced block is not closed")
    assert result.finish_reason == "length"


def house(tmp_path: Path, check_yaml: str, code: str = "def f(x):\n    return x\n") -> Path:
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code" / "a.md").write_text(f"Do it.\n\n{fenced(code)}\n")
    (tmp_path / "code" / "a.check.yaml").write_text(check_yaml)
    return tmp_path


def judge_in(folder: Path, text: str) -> Validity:
    (prompt,) = workloads.load(folder)
    return check(prompt, load_check(folder, prompt.id), text, "stop")


def test_changed_contains_and_absent(tmp_path: Path) -> None:
    folder = house(
        tmp_path,
        "kind: code\nchanged: [A.m]\ncontains: [while x]\nabsent: [for y]\n",
        "class A:\n    def m(self, x):\n        for y in x: pass\n\n    def n(self):\n        return 1\n",
    )
    right = "class A:\n    def m(self, x):\n        while x: x.pop()\n\n    def n(self):\n        return 1\n"
    assert judge_in(folder, right).status == "valid"
    assert judge_in(folder, right.replace("return 1", "return 2")).reasons == (
        "A.n is not as asked: expected 'return 1', found 'return 2'",
    )
    assert judge_in(folder, right.replace("while x", "for y in x")).reasons == (
        "'while x' is missing",
        "'for y' is still there",
    )


def test_only_the_declared_functions_need_annotations(tmp_path: Path) -> None:
    code = "from dataclasses import dataclass\n\n@dataclass\nclass A:\n    x: int\n    y: int = 2\n\n"
    code += "def f(a):\n    b = a\n\ndef g(*a, **k):\n    pass\n"
    folder = house(tmp_path, "kind: code\nannotated: [f]\n", code)
    right = code.replace("def f(a):\n    b =", "def f(a: int) -> None:\n    b: int =")
    assert judge_in(folder, right).status == "valid"
    assert judge_in(folder, right.replace("    x: int\n", "")).status == "invalid"
    folder = house(tmp_path, "kind: code\nannotated: [g]\n", code)
    assert judge_in(folder, code).reasons == (
        "g: parameter 'a' has no annotation",
        "g: parameter 'k' has no annotation",
        "g: the return value has no annotation",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: cod\n", r"unknown kind in .*a\.check\.yaml 'cod'. Did you mean 'code'\? Valid: code, quote"),
        ("kind: [code]\n", "unknown kind"),
        ("rename: {old: a, new: b}\n", "needs a key 'kind'. Valid: code, quote"),
        ("- kind\n", "needs a key 'kind'"),
        ("kind: code\nrenam: {old: a, new: b}\n", r"a\.check\.yaml: unknown key 'renam'. Did you mean 'rename'\?"),
        ("kind: code\nrename: {old: a, nw: b}\n", r"unknown key 'rename.nw'. Did you mean 'new'\? Valid: new, old"),
        ("kind: code\nrename: {old: a}\n", "rename.new: Field required"),
        ("kind: code\nrename: {old: a b, new: c}\n", "rename.old"),
        (
            "kind: code\nargument: [{function: f, name: x, default: 1, passed: [g]}]\n",
            r"'argument.0.passed'.*passed_to",
        ),
        ("kind: code\nadded: logger\n", "added: Input should be a valid list"),
        ("kind: code\nchanged: [1]\n", "changed.0: Input should be a valid string"),
        ("kind: quote\n", "must_quote: Field required"),
        ("kind: quote\nmust_quote: []\n", "must_quote: List should have at least 1"),
        (
            "kind: quote\nmust_quote: [a]\nrename: {old: a, new: b}\n",
            r"'rename'.*Valid: kind, must_not_quote, must_quote",
        ),
        ("kind: 'code\n", "is not YAML"),
        ("kind: code\nkind: quote\n", r"a\.check\.yaml is not YAML: key 'kind' is given twice"),
    ],
)
def test_a_check_that_is_wrong_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    folder = house(tmp_path, text)
    with pytest.raises(UsageError, match=message):
        load_check(folder, "code/a")


def test_a_wrong_check_is_refused_before_there_is_an_answer(tmp_path: Path) -> None:
    folder = house(tmp_path, "kind: code\n")
    prompts = workloads.load(folder)
    validity.refuse_wrong(folder, prompts)
    for text, message in (("kind: cod\n", "unknown kind"), ("kind: code\nrename: {old: g, new: h}\n", "renames 'g'")):
        house(tmp_path, text)
        with pytest.raises(UsageError, match=message):
            validity.refuse_wrong(folder, prompts)


def test_a_check_that_does_not_fit_its_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="code/a: a code check needs Python code in the prompt"):
        judge_in(house(tmp_path, "kind: code\n", "int main() {}\n"), "")
    with pytest.raises(UsageError, match="code/a: its check renames 'g'"):
        judge_in(house(tmp_path, "kind: code\nrename: {old: g, new: h}\n"), "")
    with pytest.raises(UsageError, match=r"code/a: its check replaces 'g\('"):
        judge_in(house(tmp_path, "kind: code\nreplace: {'g(': 'h('}\n"), "")
    with pytest.raises(UsageError, match="code/a: a quote check needs lines <passage>"):
        judge_in(house(tmp_path, "kind: quote\nmust_quote: [a]\n"), "")
    prompt, declared = PROMPTS[RAG[0]], load_check(OURS, CODE[0])
    with pytest.raises(UsageError, match="a code check needs a fenced block"):
        check(prompt, declared, "", None)
    declared = validity.QuoteCheck(kind="quote", must_quote=["no such words"])
    with pytest.raises(UsageError, match="names 'no such words', which the passage does not hold"):
        check(prompt, declared, "", None)


# --- quotations -----------------------------------------------------------------------------------------------------

LAMP = (
    "If the main lamp fails after sunset, the attendant starts the reserve lamp within two minutes by turning the red "
    "lever to the left. The time of failure is written in the log before any repair is tried, and the harbour office "
    "is told by radio on channel 12. If the reserve lamp fails as well, the attendant hangs the hand lantern on the "
    "gallery rail on the seaward side and sounds the horn once a minute until daylight."
)


def sentences_that_answer(prompt_id: str) -> list[str]:
    """Return, from the first to the last phrase that must be quoted, the passage's sentences."""
    declared = load_check(OURS, prompt_id)
    assert isinstance(declared, validity.QuoteCheck)
    sentences = re.split(r"(?<=[.!?])\s+", validity.passage(PROMPTS[prompt_id]))
    hits = [n for n, sentence in enumerate(sentences) if any(phrase in sentence for phrase in declared.must_quote)]
    return sentences[hits[0] : hits[-1] + 1]


@pytest.mark.parametrize("name", RAG)
def test_the_answering_sentences_are_valid_and_long_enough_to_time(name: str) -> None:
    answer = sentences_that_answer(name)
    assert len(" ".join(answer).split()) >= 40
    for text in (" ".join(answer), "\n".join(answer), "\n\n".join(f'- "{sentence}"' for sentence in answer)):
        assert judge(name, text) == Validity("valid", finish_reason="stop", quotation="verbatim", verbatim_share=1.0)


@pytest.mark.parametrize("name", RAG)
def test_one_changed_word_is_not_verbatim(name: str) -> None:
    answer = sentences_that_answer(name)
    wrong = re.sub(r"\b(a|the|is|and)\b", "some", answer[0], count=1)
    assert wrong != answer[0]
    result = judge(name, " ".join([wrong, *answer[1:]]))
    assert result.quotation == "not verbatim"
    assert result.reasons[0] == f"not verbatim: {wrong}"
    total = sum(map(len, [wrong, *answer[1:]]))
    assert result.verbatim_share == pytest.approx(1 - len(wrong) / total)


@pytest.mark.parametrize("name", RAG)
def test_the_whole_passage_is_no_answer(name: str) -> None:
    result = judge(name, validity.passage(PROMPTS[name]))
    assert result.quotation == "verbatim"
    assert result.status == "invalid"
    assert "too" in result.reasons[0]


@pytest.mark.parametrize(
    ("text", "quotation"),
    [
        (LAMP, "verbatim"),
        (f"“{LAMP}”", "verbatim"),
        (f"> {LAMP}\n", "verbatim"),
        (f"1. {LAMP}", "verbatim"),
        (LAMP.replace("main lamp", "main  lamp"), "verbatim after whitespace"),
        (LAMP.replace("the left. The", "the left.\tThe"), "verbatim after whitespace"),
        (f"The passage says: {LAMP}", "not verbatim"),
        (LAMP.replace("channel 12", "channel 21"), "not verbatim"),
    ],
)
def test_the_class_of_a_quotation(text: str, quotation: str) -> None:
    result = judge("rag/lighthouse-lamp", text)
    assert result.quotation == quotation
    assert result.status == ("invalid" if quotation == "not verbatim" else "valid")


def test_a_quotation_of_something_else_or_of_half_is_invalid() -> None:
    result = judge("rag/lighthouse-lamp", "Dogs remain at the landing stage.")
    assert result.quotation == "verbatim"
    assert result.reasons[0] == "does not quote 'starts the reserve lamp within two minutes'"
    assert len(result.reasons) == 3
    half = judge("rag/lighthouse-lamp", LAMP[:150], "length")
    assert (half.quotation, half.notes) == ("verbatim", ("cut off at max_tokens",))
    assert half.status == "invalid"


@pytest.mark.parametrize("text", ["", " \n", '""'])
def test_an_empty_quotation_is_invalid(text: str) -> None:
    assert judge("rag/lighthouse-lamp", text).reasons == ("the answer is empty",)


@given(st.text(), st.sampled_from(list(PROMPTS)), st.sampled_from(["stop", "length", None]))
def test_any_answer_gets_a_verdict(text: str, name: str, finish_reason: str | None) -> None:
    result = judge(name, text, finish_reason)
    assert result.status == ("unchecked" if name.startswith("creative/") else "invalid")
    assert bool(result.reasons) == (result.status == "invalid")
    assert result.verbatim_share is None or 0 <= result.verbatim_share <= 1


# --- loops ----------------------------------------------------------------------------------------------------------


def naive_loop(text: str) -> int | None:
    """Return the length of the longest suffix that is a loop, by trying all."""
    for size in range(len(text), validity.LOOP_CHARACTERS - 1, -1):
        suffix = text[len(text) - size :]
        for period in range(1, size // validity.LOOP_REPEATS + 1):
            if suffix[period:] == suffix[:-period]:
                return size
    return None


@given(st.text("ab", max_size=20), st.text("ab", min_size=1, max_size=40), st.integers(1, 40))
def test_loops_against_the_naive_search(head: str, piece: str, times: int) -> None:
    text = head + piece * times
    found = find_loop(text)
    expected = naive_loop(text)
    assert (found and len(text) - found.start) == expected
    if found is not None:
        assert text[found.start : -found.period] == text[found.start + found.period :]
        assert found.repeats == pytest.approx((len(text) - found.start) / found.period)


@given(st.text(max_size=50), st.text(min_size=1, max_size=30), st.integers(4, 10))
def test_a_piece_repeated_often_enough_is_a_loop_wherever_it_is_cut(head: str, piece: str, times: int) -> None:
    text = head + piece * times * -(-validity.LOOP_CHARACTERS // len(piece)) + piece[: len(piece) // 2]
    found = find_loop(text)
    assert found is not None
    assert found.period <= len(piece)


@pytest.mark.parametrize("tail", ["", "\n", "\n```", "\n~~~\n\n", "   "])
def test_a_loop_may_be_followed_by_space_or_a_fence(tail: str) -> None:
    text = "Once. " + "And then it went on and on. " * 5 + tail
    found = find_loop(text)
    assert found is not None
    assert (found.period, found.start) == (28, 4)


def test_endless_newlines_are_a_loop() -> None:
    assert find_loop("The end." + "\n" * 200) == validity.Loop(1, 200.0, 8)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ha " * 20,
        "A sentence of about forty characters, so. " * 3,
        LAMP,
        *(edited(name) for name in EDITS),
        "".join(f"{n}. a line with a number that runs on\n" for n in range(1, 9)),
    ],
)
def test_what_is_no_loop(text: str) -> None:
    assert find_loop(text) is None


def test_a_loop_is_reported_for_every_workload_and_decides_nothing() -> None:
    text = "The sea was calm. " * 20
    result = judge("creative/poem-first-frost", text)
    assert (result.status, result.loops, result.reasons) == ("unchecked", True, ())
    looping = LAMP + "\n" + (LAMP + "\n") * 4
    assert judge("rag/lighthouse-lamp", looping).loops
    assert judge("rag/lighthouse-lamp", looping).status == "valid"


def test_long_answers_take_linear_time() -> None:
    text = "".join("ab"[(n * n) % 7 % 2] for n in range(100_000))
    find_loop(text)  # seconds by trying all periods of all suffixes would be hours
