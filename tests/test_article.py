"""Blocks of the article from records, without building it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import altair
import pytest

from conftest import ROOT
from recordfactory import a_pass, a_record, answer, digest, failed, prompt_ids
from samebytes import article, bookdata, charts, published, record
from samebytes.bookdata import Measured
from samebytes.errors import RecordError, UsageError
from samebytes.record import Record

IDS = prompt_ids(3)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one prompt, three configs and no study file."""
    (tmp_path / "_config.yml").touch()
    for name in ("configs", "studies", "workloads", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "workloads/rag").mkdir()
    (tmp_path / "workloads/rag/one.md").write_text("A prompt.\n")
    for name in article.ARTICLE_CONFIGS:
        (tmp_path / "configs" / f"{name}.yaml").write_text(f"why: the reason for <{name}>\n")
    monkeypatch.setenv("SAMEBYTES_ROOT", str(tmp_path))
    return tmp_path


def measured(house: Path, records: Sequence[Record], name: str = "toy") -> Measured:
    for found in records:
        record.save(found, house / "results" / name / f"{found.label}.json")
    study = bookdata.measured(name)
    assert study is not None
    return study


def text(block: str) -> str:
    """Return what a reader sees of a block."""
    return " ".join(re.sub(r"<[^>]+>", " ", block.replace("<wbr>", "")).split())


def baselines(**second: object) -> list[Record]:
    return [a_record("baseline", ids=IDS), a_record("baseline-2", "baseline", ids=IDS, **second)]  # type: ignore[arg-type]


# -- what is read -----------------------------------------------------------------------------------------------------


def test_studies_are_those_with_records_on_a_gpu_first_and_this_machine_apart(house: Path) -> None:
    with_gpu = a_record("baseline").machine.model_copy(update={"gpu": "a card"})
    measured(house, [a_record("baseline")], "a-cpu")
    measured(house, [a_record("baseline", machine=with_gpu)], "b-gpu")
    measured(house, [a_record("baseline")], bookdata.THIS_MACHINE)
    (house / "results/published-only").mkdir()
    (house / "results/published-only/summary.json").write_text("{}")
    assert [study.name for study in bookdata.studies()] == ["b-gpu", "a-cpu"]
    assert [study.name for study in article.everything()] == ["b-gpu", "a-cpu", "quick"]
    here = bookdata.this_machine()
    assert here is not None
    assert text(article.this_machine(here)).startswith("quick some/model on a cpu")


def test_a_record_that_cannot_be_read_stops_the_page(house: Path) -> None:
    measured(house, baselines())
    (house / "results/toy/ngram.json").write_text('{"schema": 99}')
    with pytest.raises(RecordError, match="schema 99"):
        bookdata.studies()


def test_without_records_the_page_says_how_to_measure(house: Path) -> None:
    assert bookdata.studies() == []
    assert text(article.nothing_measured()).endswith("samebytes study NAME .")
    assert text(article.this_machine(bookdata.this_machine())).endswith("make report .")


# -- control and bytes ------------------------------------------------------------------------------------------------


def control(study: Measured) -> str:
    found = study.control("baseline")
    assert found is not None
    return text(article.control(study, found))


def test_a_control_that_holds_blames_the_config(house: Path) -> None:
    said = control(measured(house, baselines()))
    assert said == (
        "Control: over 2 server starts of baseline , 9 of 9 prompts gave the same bytes each time. "
        "So a difference that another config repeats is its doing."
    )


def test_a_control_that_does_not_hold_names_the_prompts(house: Path) -> None:
    said = control(measured(house, baselines(texts={"rag/1": "otherwise"})))
    assert "8 of 9 prompts" in said
    assert said.endswith("Not attributable to any config: differences in rag/1 .")


def test_one_start_is_no_control(house: Path) -> None:
    said = control(measured(house, [a_record("baseline", ids=IDS)]))
    assert said.startswith("Control: there is none.")


def test_the_headline_tells_speed_and_bytes(house: Path) -> None:
    slow = {f"creative/{i}": 8.0 + i / 100 for i in range(3)}
    unclear = {"rag/0": 5.0, "rag/1": 40.0, "rag/2": 9.0}
    ngram = a_record("ngram", ids=IDS, rate=20.0, rates=slow | unclear, texts={"creative/0": "other words"})
    said = text(article.headline(measured(house, [*baselines(), ngram])))
    assert "code edits 2.00 × [ 2.00 , 2.00 ] (speed-up)" in said
    assert re.search(r"quoting a passage \S+ × \[ \S+ , \S+ \] \(no clear change\)", said)
    assert "free prose 0.80 × [ 0.80 , 0.80 ] (slow-down)" in said
    assert said.endswith("Answers against baseline : 8 of 9 the same, 1 differ.")


def test_a_failed_request_is_not_counted_as_answered(house: Path) -> None:
    ngram = a_record("ngram", ids=IDS, replace={"rag/0": failed("rag/0")})
    said = text(article.headline(measured(house, [*baselines(), ngram])))
    assert said.endswith("8 of 9 the same, 1 were not answered.")


def test_the_ratio_of_medians_and_the_paired_ratio_stand_apart(house: Path) -> None:
    rates = {"rag/0": 10.0, "rag/1": 20.0, "rag/2": 90.0}
    study = measured(house, [*baselines(), a_record("ngram", ids=IDS, rate=20.0, rates=rates)])
    assert "ngram 20.0 2.00 × 20.0 2.00 × 20.0 2.00 ×" in text(article.speed_table(study))
    assert "ngram against baseline 2.00 × [ 2.00 , 2.00 ] 2.62 ×" in text(article.comparison_table(study))


def test_what_the_answers_are_worth_where_they_can_be_checked(house: Path) -> None:
    study = measured(house, baselines())
    assert article.worth(study) == "", "no answer is to a prompt at hand"
    prompt = house / "workloads/rag/0.md"
    prompt.write_text("Quote.\n<passage>\nthe answer to rag/0 stands here\n</passage>\n")
    prompt.with_name("0.check.yaml").write_text("kind: quote\nmust_quote: ['the answer to rag/0']\n")
    records = baselines()
    for found in records:
        found.prompts = [
            p.model_copy(update={"sha256": digest(prompt.read_text())}) if p.id == "rag/0" else p for p in found.prompts
        ]
    said = text(article.worth(measured(house, records)))
    assert "baseline are worth: 2 of 2 did what was asked" in said
    assert "0 of 2 end in a repetition" in said
    assert said.endswith("0 of 2 were cut off at the token limit.")


# -- tables and chart -------------------------------------------------------------------------------------------------


def test_a_config_that_cannot_run_is_a_row_with_the_engines_words(house: Path) -> None:
    fp8 = a_record("fp8", status="failed", reason="needs <AVX-512>", passes=[], launches=[])
    block = article.speed_table(measured(house, [*baselines(), fp8, a_record("ngram", status="partial")]))
    assert "fp8 – – – – failed: needs &lt;AVX-512&gt;" in text(block)
    assert "ngram – – – – partial" in text(block)
    assert block.count('title="needs &lt;AVX-512&gt;">–</data>') == 4


def test_the_concurrent_leg_has_a_column_where_a_run_has_one(house: Path) -> None:
    leg = a_pass([answer(key) for key in IDS], kind="concurrent")
    alone = a_record("ngram", ids=IDS)
    first, second = baselines()
    first.passes = [*first.passes, leg]
    block = article.speed_table(measured(house, [first, second, alone]))
    assert "concurrent leg" in block
    (rate,) = [c.aggregate_tok_s for c in bookdata.studies()[0].summary.config("baseline").concurrent]
    assert f'<data value="{rate}"' in block
    assert 'title="not measured for this config">–' in block


def test_no_speed_for_short_answers_only(house: Path) -> None:
    short = {key: answer(key, n=8) for key in IDS if key.startswith("rag")}
    block = article.speed_table(measured(house, baselines(replace=short)))
    assert 'title="no answer of 32 tokens or more">–' in block


def test_differences_leave_out_the_projects_own_version(house: Path) -> None:
    other = a_record("ngram", ids=IDS, flags=["--speculative-config", "{}"])
    other.versions.git_commit = "abc"
    other.versions.torch = "2"
    block = text(article.differences(measured(house, [*baselines(), other])))
    assert "ngram argv --speculative-config – {}" in block
    assert "ngram versions torch – 2" in block
    assert "abc" not in block


def test_the_chart_has_a_mark_for_each_timed_prompt_and_a_table_of_the_same(house: Path) -> None:
    ngram = a_record("ngram", ids=IDS, rate=math.pi, replace={"rag/0": failed("rag/0")})
    block = article.speed_chart(measured(house, [*baselines(), ngram]))
    spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', block, re.DOTALL)[1])  # type: ignore[index]
    (rows,) = spec["datasets"].values()
    assert len(rows) == 17
    assert block.count('aria-roledescription="point"') == 17
    assert "$schema" not in spec
    assert "ngram: code_edit 3.1, rag 3.1, creative 3.1" in spec["description"]
    assert text(block[block.index("<details") :]).count("3.1") == 8


def test_a_chart_refuses_what_is_not_a_number() -> None:
    data = altair.InlineData(values=[{"x": math.nan}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        charts.spec(altair.layer(altair.Chart(data).mark_point().encode(x="x:Q")))


def test_text_in_a_spec_cannot_end_its_script() -> None:
    data = altair.InlineData(values=[{"x": "</script><script>alert(1)"}])
    block = charts.embed(altair.layer(altair.Chart(data).mark_point().encode(x="x:N")), "<d>", "<c>")
    assert block.count("</script>") == 1
    assert 'aria-label="&lt;d&gt;"' in block
    assert "<figcaption>&lt;c&gt;</figcaption>" in block


def test_the_picture_is_drawn_in_ink_on_white(house: Path) -> None:
    study = measured(house, baselines())
    charts.main(["toy"])
    picture = (study.folder / "speed.svg").read_text(encoding="utf-8")
    assert 'fill="white"' in picture
    assert "currentColor" not in picture
    with pytest.raises(UsageError, match="'nothing' has no records"):
        charts.main(["nothing"])


def points(picture: str) -> list[str]:
    return re.findall(r'aria-roledescription="point"[^>]* transform="([^"]+)"', picture)


def test_the_pictures_in_the_readme_show_the_records(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEBYTES_ROOT", str(ROOT))
    pictures = re.findall(
        r"!\[[^]]+\]\((results/([^/]+)/speed\.svg)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert pictures
    for path, name in pictures:
        study = bookdata.measured(name)
        assert study is not None
        marks = points(charts.picture(study))
        assert len(marks) > 20
        assert points((ROOT / path).read_text(encoding="utf-8")) == marks, f"python -m samebytes.charts {name}"


# -- published figures ------------------------------------------------------------------------------------------------


def test_published_figures_stand_as_printed_and_those_that_do_not_follow_are_named() -> None:
    (found,) = [published.load(path) for path in ROOT.glob("results/*/published.yaml")]
    said = text(article.published(found))
    assert "ngram 349.8 4.65 × 181 2.41 × 71.9 0.95 × – – 18 of 24" in said
    assert "fp8 76.1 76.1 76.7 656 65,536 12 of 24" in said
    assert "not measured by this project" in said
    bad = [check.id for check in found.checks() if not check.consistent]
    assert bad
    assert all(f"{name} is printed as" in said for name in bad)


def test_configs_are_listed_with_their_reasons(house: Path) -> None:
    assert "the reason for &lt;fp8&gt;" in article.configs()
