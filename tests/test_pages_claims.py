"""The article's claims on small studies whose answer is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bookhouse import text
from conftest import ROOT
from recordfactory import a_pass, a_record, answer, failed, prompt_ids
from samebytes import bookdata, published, record
from samebytes.bookdata import Measured
from samebytes.findings import Ratio
from samebytes.pages import claims
from samebytes.pages.claims import ABSENT, FAILS, HOLDS, OPEN
from samebytes.record import Record
from samebytes.stats import paired_ratio

IDS = prompt_ids(3)
ARTICLE = published.load(ROOT / "results/rtx5090-qwen3-32b-awq/published.yaml")


def verdicts(house: Path, *records: Record) -> dict[str, str]:
    for found in records:
        record.save(found, house / "results/toy" / f"{found.label}.json")
    study = bookdata.measured("toy")
    assert study is not None
    assert '<h3 id="claims-toy">' in claims.table(study, "article", ARTICLE)
    return {claim.text.split(" (")[0]: claim.verdict for claim in claims.judge(study, ARTICLE)}


def run(label: str, config: str | None = None, rate: float = 10.0, **answers: str) -> Record:
    """A run whose rates vary a little over the prompts, so that a ratio has an interval."""
    texts = {key: answers.get(key.split("/")[0], "") for key in IDS}
    replace = {key: answer(key, texts[key], rate=rate * (1 + i / 100)) for i, key in enumerate(IDS)}
    return a_record(label, config or label, ids=IDS, replace=replace)


def of(found: dict[str, str], words: str) -> str:
    (verdict,) = [verdict for text, verdict in found.items() if words in text]
    return verdict


def test_a_study_like_the_articles(house: Path) -> None:
    slow = run("ngram", rate=40.0, creative="other")
    for request in slow.passes[0].requests:
        if request.workload == "creative":
            request.decode_tok_s = 5.0 + int(request.id[-1]) / 100
    found = verdicts(
        house,
        run("baseline"),
        run("baseline-2", "baseline"),
        slow,
        run("fp8", code_edit="a", rag="b", creative="c"),
    )
    assert of(found, "code edits faster") == of(found, "free prose slower") == HOLDS
    assert of(found, "keep the baseline’s bytes") == of(found, "Some free prose changes") == HOLDS
    assert of(found, "repeats its own bytes") == of(found, "changes words") == HOLDS
    assert of(found, "aggregate of many") == ABSENT


def test_a_study_unlike_the_articles(house: Path) -> None:
    found = verdicts(
        house,
        run("baseline"),
        run("baseline-2", "baseline", rag="not again"),
        run("ngram", rate=5.0, code_edit="other"),
        run("fp8", rate=12.0),
    )
    assert of(found, "code edits faster") == FAILS
    assert of(found, "keep the baseline’s bytes") == FAILS
    assert of(found, "Some free prose changes") == FAILS
    assert of(found, "repeats its own bytes") == FAILS
    assert of(found, "speed of a single request") == FAILS
    assert of(found, "changes words") == FAILS


def test_a_difference_that_is_not_put_down_to_the_config_decides_nothing(house: Path) -> None:
    other = {"code_edit": "other", "rag": "other", "creative": "other"}
    found = verdicts(house, run("baseline"), run("ngram", **other), run("fp8", **other))
    assert of(found, "keep the baseline’s bytes") == of(found, "Some free prose changes") == OPEN
    assert of(found, "changes words") == OPEN
    study = bookdata.measured("toy")
    assert study is not None
    assert "0 of 9 the same, 9 differ without a control" in text(claims.table(study, "article", ARTICLE))
    # with a control that agrees with itself they are
    found = verdicts(house, run("baseline-2", "baseline"))
    assert of(found, "keep the baseline’s bytes") == FAILS
    assert of(found, "Some free prose changes") == of(found, "changes words") == HOLDS


@pytest.mark.parametrize(
    ("later", "verdict"), [((0.8, 0.81, 0.82), HOLDS), ((1.2, 1.21, 1.22), FAILS), ((0.8, 1.0, 1.2), OPEN)]
)
def test_the_first_token_is_decided_by_its_interval(house: Path, later: tuple[float, ...], verdict: str) -> None:
    ngram = run("ngram")
    for i, request in enumerate(ngram.passes[0].requests):
        assert request.ttft_s is not None
        request.ttft_s *= later[i % 3]
    found = verdicts(house, run("baseline"), run("baseline-2", "baseline"), ngram)
    assert of(found, "first token comes earlier") == verdict


def test_a_claim_about_all_answers_needs_them_all(house: Path) -> None:
    gone = [failed(key) if key.startswith(("code_edit", "rag/0")) else answer(key, "") for key in IDS]
    found = verdicts(
        house,
        run("baseline"),
        run("baseline-2", "baseline"),
        a_record("ngram", ids=IDS, passes=[a_pass(gone)]),
        a_record("fp8", ids=IDS, passes=[a_pass([failed(k) if k < "creative" else answer(k, "else") for k in IDS])]),
    )
    assert of(found, "keep the baseline’s bytes") == OPEN
    assert of(found, "changes words") == ABSENT  # no code edit was answered
    study = bookdata.measured("toy")
    assert study is not None
    assert "2 of 6 the same, 4 were not answered" in text(claims.table(study, "article", ARTICLE))


def test_without_the_runs_nothing_is_claimed(house: Path) -> None:
    assert set(verdicts(house, run("baseline")).values()) == {ABSENT}


def test_claims_are_counted_over_studies_and_those_that_go_apart_are_named(house: Path) -> None:
    def study(name: str, *records: Record) -> Measured:
        for found in (run("baseline"), run("baseline-2", "baseline"), *records):
            record.save(found, house / "results" / name / f"{found.label}.json")
        found = bookdata.measured(name)
        assert found is not None
        return found

    one, two = study("one", run("ngram", rate=40.0)), study("two", run("ngram", rate=40.0, rag="other"))
    said = text(claims.conclusion([one, two], ARTICLE))
    counts = [int(n) for n in re.findall(r"\d+", said.partition("On one and not")[0])]
    assert counts[0] == sum(counts[1:])
    assert counts[3] == 1
    assert said.endswith(
        "On one and not on another: Code edits and quoted answers keep the baseline’s bytes under n-gram speculation "
        "(all of them)."
    )
    assert "and 0 on one machine and not on another" in text(claims.conclusion([one], ARTICLE))
    assert claims.conclusion([], ARTICLE) == claims.overview([], ARTICLE) == ""
    block = text(claims.overview([one, two], ARTICLE))
    assert "(all of them). holds does not hold" in block


@pytest.mark.parametrize(
    ("rates", "drift", "verdict"),
    [
        ([20.0, 20.1], 1.9, HOLDS),
        ([5.0, 5.1], 1.9, FAILS),
        ([8.0, 12.0], 1.2, OPEN),
        ([20.0, 20.1], 2.1, OPEN),
        ([20.0, 20.1], None, OPEN),
        ([20.0], 1.2, ABSENT),
        ([], 1.2, ABSENT),
    ],
)
def test_a_ratio_decides_by_what_it_is_called(rates: list[float], drift: float | None, verdict: str) -> None:
    assert claims.above(Ratio("rag", 2, paired_ratio(rates, [10.0] * len(rates)), None, drift)) == verdict


def test_a_drift_that_was_not_measured_decides_no_claim_on_speed(house: Path) -> None:
    found = verdicts(house, run("baseline"), run("ngram", rate=40.0), run("fp8"))
    assert of(found, "code edits faster") == of(found, "free prose slower") == OPEN
    assert of(found, "speed of a single request") == OPEN


@pytest.mark.parametrize(
    ("again", "rate", "verdict"), [(10.0, 10.0, HOLDS), (10.0, 12.0, FAILS), (10.5, 10.0, OPEN), (13.0, 12.0, OPEN)]
)
def test_a_speed_is_about_as_it_was_only_where_the_drift_would_have_let_it_be_seen(
    house: Path, again: float, rate: float, verdict: str
) -> None:
    found = verdicts(house, run("baseline"), run("baseline-2", "baseline", rate=again), run("fp8", rate=rate))
    assert of(found, "speed of a single request") == verdict
