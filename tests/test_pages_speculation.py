"""The page that steps through recorded answers: every step against the record, and what is offered."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import ngramfactory
from bookhouse import measured, text
from recordfactory import a_record
from samebytes import bookdata, paths, tokens
from samebytes.bookdata import Measured
from samebytes.pages import speculation
from samebytes.pages.speculation import Walk
from samebytes.replay import ARTICLE

HOSTILE = ("</script><script>alert(1)</script>", "{{ secret }}", "{glue:}`k`", "<!--", "&amp;", "\n", " ", "\u2028")


@pytest.fixture(scope="module")
def committed() -> list[Measured]:
    return [study for study in bookdata.studies() if (study.folder / tokens.FILE).is_file()]


@pytest.fixture(scope="module")
def walks(committed: list[Measured]) -> list[Walk]:
    return [walk for study in committed for walk in speculation.offered(study)]


def toy(house: Path, spelt: bool = True, **changes: Any) -> Measured:
    """Return a study with an n-gram run whose counters are the replay's, and its tokens' texts, some hostile."""
    plain, fast = ngramfactory.pair()
    for request in fast.passes[0].requests:
        request.text = " ".join(map(str, request.token_ids or ()))
        for name, value in changes.get(request.id, {}).items():
            setattr(request, name, value)
    if spelt:
        names = {i: HOSTILE[i // 10 % len(HOSTILE)] if i % 10 == 0 else f"{i} " for i in range(1000)}
        vocabulary = tokens.Vocabulary({i: name.encode() for i, name in names.items()}, frozenset())
        folder = house / "results/toy"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / tokens.FILE).write_text(tokens.to_json(vocabulary, names), encoding="utf-8")
    return measured(house, [plain, fast])


def content(block: str) -> list[dict[str, Any]]:
    """Return what the script is given."""
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', block, re.DOTALL)
    return list(json.loads(found))


# -- what the records hold --------------------------------------------------------------------------------------------


def test_committed_studies_offer_answers(committed: list[Measured], walks: list[Walk]) -> None:
    assert {walk.study.name for walk in walks} == {study.name for study in committed}
    assert any(walk.request.workload == "code_edit" for walk in walks)


def test_the_steps_of_a_committed_answer_are_its_record(walks: list[Walk]) -> None:
    for walk in walks:
        vocabulary, request = tokens.load(walk.study.folder), walk.request
        ids = request.token_ids or []
        assert vocabulary is not None
        pieces = zip(walk.pieces[walk.n_prompt :], ids, strict=True)
        assert "".join(piece for piece, i in pieces if i not in vocabulary.special) == request.text, walk.source
        drafts = [step for step in walk.steps if step.draft is not None]
        assert sum(step.tokens for step in walk.steps) == request.completion_tokens, walk.source
        assert len(drafts) == request.drafts, walk.source
        assert sum(len(step.proposed) for step in drafts) == request.draft_tokens, walk.source
        accepted = sum(step.draft.accepted for step in drafts if step.draft)
        beyond = sum(len(step.proposed) - step.draft.accepted for step in drafts if step.draft and step.own is None)
        assert accepted <= (request.accepted_tokens or 0) <= accepted + beyond, walk.source


def test_what_is_looked_up_stands_where_it_is_said_to(walks: list[Walk]) -> None:
    for walk in walks:
        ids = [*(walk.request.prompt_token_ids or []), *(walk.request.token_ids or [])]
        for step in walk.steps:
            if step.draft is None or step.draft.start is None:
                continue
            start, end, n = step.draft.start, walk.n_prompt + step.at, step.looked_up
            assert walk.settings.min_n <= n <= walk.settings.max_n, walk.source
            assert ids[start - n : start] == ids[end - n : end], walk.source
            assert ids[start : start + step.draft.accepted] == ids[end : end + step.draft.accepted], walk.source
            refused = step.draft.accepted < step.draft.drafted and step.own is not None
            assert not refused or ids[start + step.draft.accepted] != ids[end + step.draft.accepted], walk.source


# -- which answers are on offer ---------------------------------------------------------------------------------------


def rate(walk: Walk) -> float:
    return walk.check.predicted.tokens / walk.check.predicted.steps


def test_one_answer_per_workload_with_the_most_tokens_per_step(house: Path) -> None:
    best = {walk.request.workload: walk for walk in speculation.offered(toy(house))}
    assert set(best) == {"code_edit", "rag"}
    first = best["code_edit"]
    without = {first.request.id: {"finish_reason": "length"}}
    second = {walk.request.workload: walk for walk in speculation.offered(toy(house, **without))}["code_edit"]
    assert second.request.id != first.request.id
    assert rate(second) < rate(first)


def test_an_answer_that_loops_or_whose_counters_disagree_is_not_offered(house: Path) -> None:
    every = {f"{('code_edit', 'rag')[i % 2]}/{i}" for i in range(6)}
    loops: dict[str, Any] = {key: {"text": "again and again. " * 60} for key in every if key.startswith("rag")}
    wrong: dict[str, Any] = {key: {"drafts": 1} for key in every if key.startswith("code_edit")}
    assert {w.request.workload for w in speculation.offered(toy(house, **loops))} == {"code_edit"}
    assert speculation.offered(toy(house, **loops, **wrong)) == []


def test_without_the_tokens_texts_the_page_says_how_to_get_them(house: Path) -> None:
    study = toy(house, spelt=False)
    assert speculation.offered(study) == []
    assert text(speculation.stepper([study])).endswith("python -m samebytes.tokens STUDY writes.")
    assert speculation.totals([study]) == ""
    assert speculation.stepper([]) == speculation.stepper([study])


def test_a_study_whose_tokens_are_not_readable_is_named_beside_the_others(house: Path) -> None:
    study = toy(house)
    assert "Not all studies" not in speculation.stepper([study])
    _, fast = ngramfactory.pair()
    other = measured(house, [fast], "other")
    assert text(speculation.stepper([study, other])).endswith("readable: python -m samebytes.tokens other .")
    some = tokens.Vocabulary({0: b"a"}, frozenset())
    (house / "results/other" / tokens.FILE).write_text(tokens.to_json(some, [0]))
    assert text(speculation.stepper([other, study])).endswith("readable: python -m samebytes.tokens other .")


def test_a_run_of_random_weights_offers_nothing(house: Path) -> None:
    study = toy(house)
    (fast,) = [record for record in study.records if record.label == "ngram"]
    fast.note = "random weights"
    assert speculation.offered(study) == []


def test_a_study_without_speculation_offers_nothing(house: Path) -> None:
    study = measured(house, [a_record("baseline")])
    assert speculation.offered(study) == []
    assert speculation.equality([study]) == ""


# -- the figure -------------------------------------------------------------------------------------------------------


def test_the_figure_reads_without_a_script_and_gives_the_script_every_step(house: Path) -> None:
    study = toy(house)
    block = speculation.stepper([study])
    walks = speculation.offered(study)
    assert "data-stepper" in block
    given = content(block)
    assert [(each["prompt"], len(each["steps"])) for each in given] == [(w.request.id, len(w.steps)) for w in walks]
    for each, walk in zip(given, walks, strict=True):
        assert each["pieces"] == walk.pieces
        assert each["server"]["drafts"] == walk.request.drafts == sum(bool(step["draft"]) for step in each["steps"])
    static = block[block.index("stepper-static") : block.index("<script")]
    assert static.count("<tr>") == 1 + min(speculation.STATIC_STEPS, len(walks[0].steps))
    judged = [step for step in walks[0].steps[: speculation.STATIC_STEPS] if step.draft]
    assert static.count("✓") == sum(step.draft.accepted for step in judged if step.draft)
    assert static.count("✗") == sum(len(s.proposed) - s.draft.accepted for s in judged if s.draft and s.own is not None)


def test_hostile_tokens_are_text(house: Path) -> None:
    study = toy(house)
    assert {piece for walk in speculation.offered(study) for piece in walk.pieces} >= set(HOSTILE)
    block = speculation.stepper([study])
    assert block.count("<script") == block.count("</script") == 1
    assert "<!--" not in block
    assert any("</script><script>alert(1)</script>" in each["pieces"] for each in content(block))


def test_the_data_of_the_figure_add_up(house: Path) -> None:
    study = toy(house)
    speculation.stepper([study])
    (path,) = (house / "_build/exhibits").glob("speculation-steps.*.json")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    for walk in speculation.offered(study):
        mine = [row for row in rows if row["prompt"] == walk.request.id]
        assert sum(row["tokens_added"] for row in mine) == walk.request.completion_tokens
        assert sum(row["drafted"] for row in mine) == walk.request.draft_tokens
        assert sum(row["accepted"] for row in mine) == walk.request.accepted_tokens
        assert {row["found_in"] for row in mine} <= {"prompt", "answer", None}


def test_the_counters_stand_beside_the_servers(house: Path) -> None:
    study = toy(house)
    said = text(speculation.totals([study]))
    for walk in speculation.offered(study):
        request = walk.request
        assert f"{request.drafts} {request.drafts} {request.draft_tokens} {request.draft_tokens}" in said


def test_equality_counts_the_answers_whose_counters_and_chunks_agree(house: Path) -> None:
    assert "6 of 6 answers, in 1 run" in text(speculation.equality([toy(house)]))
    chunks = ngramfactory.pair()[1].passes[0].requests[1].chunks
    first = next(i for i, (_, n) in enumerate(chunks) if n and n > 1)
    inside = [*chunks[:first], (chunks[first][0], 1)]  # ends within a step
    shifted = {"rag/1": {"chunks": inside}, "rag/3": {"draft_tokens": 1}}
    assert "4 of 6 answers" in text(speculation.equality([toy(house, **shifted)]))


def test_every_committed_answer_is_replayed_exactly(committed: list[Measured]) -> None:
    said = re.findall(r"(\d+) of (\d+) answers", text(speculation.equality(committed)))
    assert len(said) == len(committed)
    assert all(same == every for same, every in said)


def test_the_settings_in_the_text_are_the_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, str] = {}
    monkeypatch.setattr(speculation.prose, "figure", lambda name, value: shown.update({name: text(value)}))
    monkeypatch.setenv("SAMEBYTES_ROOT", str(paths.root()))
    speculation.glue()
    assert shown == {"k": str(ARTICLE.k), "min_n": str(ARTICLE.min_n), "max_n": str(ARTICLE.max_n)}


def test_a_token_beyond_the_vocabulary_is_named_by_its_number() -> None:
    assert tokens.Vocabulary({0: b"a"}, frozenset()).name(7) == "#7"
