from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from ngramfactory import BASELINE_S, FULL_S, NONE_S, pair
from recordfactory import a_pass, a_record, answer, digest, failed, prompt_ids
from samebytes import analysis, compare, record, summary
from samebytes.errors import RecordError
from samebytes.markdown import comparison, interval, of, percent, to_markdown
from samebytes.record import ClientLoad, PromptInfo, Record, TelemetrySample

IDS = prompt_ids(8)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one prompt of its own, one config and one study."""
    files = {
        "_config.yml": "",
        "configs/baseline.yaml": "why: the reference\n",
        "configs/ngram.yaml": "why: the candidate\n",
        "workloads/rag/0.md": "Quote.\n<passage>\nthe answer to rag/0 stands here\n</passage>\n",
        "workloads/rag/0.check.yaml": "kind: quote\nmust_quote: ['the answer to rag/0']\n",
        "studies/toy.yaml": (
            "title: toy\nmodel: m\nmax_tokens: 64\nruns:\n- config: baseline\n- config: baseline\n- config: ngram\n"
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("SAMEBYTES_ROOT", str(tmp_path))
    return tmp_path


def study(**ngram: Any) -> list[Record]:
    return [
        a_record("baseline", ids=IDS),
        a_record("baseline-2", "baseline", ids=IDS),
        a_record("ngram", ids=IDS, **({"rate": 20.0, "texts": {"creative/0": "a | b\nc"}} | ngram)),
    ]


def saved(house: Path, records: list[Record]) -> Path:
    folder = house / "results" / "toy"
    for found in records:
        record.save(found, folder / f"{found.label}.json")
    return folder


def test_write_then_verify(house: Path) -> None:
    folder = saved(house, study())
    written = summary.write(folder, summary.build(folder))
    assert [path.name for path in written] == ["summary.md", "summary.csv", "summary.json"]
    assert summary.verify(folder) == []


@pytest.mark.parametrize("name", summary.FILES)
def test_verify_names_the_line_that_does_not_follow_from_the_records(house: Path, name: str) -> None:
    folder = saved(house, study())
    summary.write(folder, summary.build(folder))
    path = folder / name
    path.write_text(path.read_text().replace("20.0", "21.0", 1))
    (found,) = summary.verify(folder)
    assert found.startswith(f"{name}:")
    assert "21.0" in found
    assert "but the records give" in found


def test_verify_sees_a_changed_record_a_missing_file_and_a_foreign_one(house: Path) -> None:
    folder = saved(house, study())
    summary.write(folder, summary.build(folder))
    saved(house, study(rate=30.0))
    assert {line.split(":")[0] for line in summary.verify(folder)} == set(summary.FILES)
    (folder / "summary.csv").unlink()
    assert summary.verify(folder) == ["summary.csv is missing"]
    summary.write(folder, summary.build(folder))
    (folder / "summary.json").write_text("[]")
    with pytest.raises(RecordError, match="does not say what it was made with"):
        summary.verify(folder)


def test_verify_uses_the_references_and_candidates_that_the_tables_were_made_with(house: Path) -> None:
    folder = saved(house, [*study(), a_record("baseline_sync", ids=IDS)])
    summary.write(folder, summary.build(folder, ["baseline_sync"], ["ngram"]))
    made = json.loads((folder / "summary.json").read_text())
    assert (made["references"], made["candidates"]) == (["baseline_sync"], ["ngram"])
    assert summary.verify(folder) == []


def test_the_studys_missing_runs_are_listed_and_answers_checked(house: Path) -> None:
    prompt = (house / "workloads/rag/0.md").read_text()
    prompts = [PromptInfo(id=key, workload=key.split("/")[0], sha256=digest(key)) for key in IDS]
    prompts = [p.model_copy(update={"sha256": digest(prompt)}) if p.id == "rag/0" else p for p in prompts]
    folder = saved(house, [a_record("baseline", ids=IDS, prompts=prompts)])
    found = summary.build(folder)
    assert [(r.label, r.status) for r in found.runs if r.status != "complete"] == [
        ("baseline-2", "not measured"),
        ("ngram", "not measured"),
    ]
    (rag,) = [v for v in found.config("baseline").validity if v.workload == "rag"]
    assert (rag.answers, rag.checked, rag.valid) == (1, 1, 1)


def test_answers_are_not_checked_against_another_prompt(house: Path) -> None:
    folder = saved(house, study())  # the records' rag/0 has another digest than the file
    assert [v.answers for v in summary.build(folder).config("baseline").validity] == [0, 0, 0]


def test_a_prompts_file_that_is_not_the_one_that_was_sent_is_named(house: Path) -> None:
    path = house / "workloads/rag/0.md"
    prompts = [PromptInfo(id="rag/0", workload="rag", sha256=digest(path.read_text()))]
    folder = saved(house, [a_record("baseline", ids=IDS, prompts=prompts)])
    assert summary.edited(folder) == []
    path.write_text("Another.\n")
    assert summary.edited(folder) == ["rag/0"]
    path.unlink()
    assert summary.edited(folder) == ["rag/0"]


def test_json_is_sorted_rounded_and_the_same_every_time() -> None:
    found = analysis.summarise(study(rate=math.pi))
    text = summary.to_json(found)
    assert text == summary.to_json(analysis.summarise(study(rate=math.pi)))
    data = json.loads(text)
    assert list(data) == sorted(data)
    assert data["configs"][1]["speed"][0]["decode_tok_s"] == 3.14159
    assert data["configs"][0]["memory"]["kv_cache_bytes"] == [2**30], "whole numbers are not rounded"


def test_csv_has_a_row_per_config_and_prompt_and_empty_cells_for_null() -> None:
    found = analysis.summarise(study(replace={"rag/3": failed("rag/3")}, texts={"rag/4": "the answer"}))
    rows = list(csv.DictReader(io.StringIO(summary.to_csv(found))))
    assert len(rows) == 48
    by = {(row["config"], row["prompt"]): row for row in rows}
    assert by["ngram", "rag/3"]["verdict_baseline"] == "missing"
    assert by["ngram", "rag/3"]["decode_tok_s"] == ""
    assert by["ngram", "rag/4"]["class_baseline"] == "length"
    assert by["ngram", "rag/4"]["char_index_baseline"] == "10"
    assert by["baseline", "rag/3"]["tokens"] == "64;64"
    assert by["baseline", "rag/3"]["verdict_baseline"] == ""
    assert by["baseline", "rag/3"]["accepted_tokens"] == "", "a config that does not speculate accepted nothing, not 0"


def test_markdown_says_what_a_reader_needs() -> None:
    slow = {key: 8.0 for key in IDS if key.startswith("creative")}
    records = [*study(rates=slow), a_record("fp8", status="failed", reason="no\nAVX-512", passes=[], launches=[])]
    text = to_markdown(analysis.summarise(records))
    assert "> **Note.** fp8 failed: no AVX-512" in text
    assert "| baseline | 2 | 10.0 (8/8) | 200.0 (8/8) |" in text
    assert "| ngram | baseline | rag | 8/8 | 2.00 | 2.00 | [2.00, 2.00] | [2.00, 2.00] | 1.00 | speed-up |" in text
    assert (
        "| ngram | baseline | creative | 8/8 | 0.80 | 0.80 | [0.80, 0.80] | [0.80, 0.80] | 1.00 | slow-down |" in text
    )
    assert "| baseline | 2 | 24/24 | 0 | 0 | [0.86, 1.00] | – |" in text
    assert "| ngram | baseline | all | 24/24 | 23 | 1 | 0 | 0 | 0 | 0 | [0.80, 0.99] |" in text
    assert "| ngram | baseline | creative/0 | differs | differs | text | 0 | 0 | 0 | agrees | none |" in text


def test_a_pass_that_the_client_may_have_limited_is_marked_beside_its_numbers() -> None:
    records = study()
    leg = a_pass([answer("rag/0"), answer("rag/0", copy_index=1)], kind="concurrent", client=ClientLoad(cpu_share=0.9))
    records[2].passes = [*records[2].passes, leg]
    text = to_markdown(analysis.summarise(records))
    assert "> **Note.** ngram: pass 1: client-bound;" in text
    assert [row[0] for row in tables(text, "Concurrent leg")] == ["ngram (client-bound)"]
    passes = [row[:2] for row in tables(text, "Passes and identity checks")]
    assert passes[-2:] == [["ngram", "0"], ["ngram (client-bound)", "1"]]
    assert "Client-bound: the client used over 0.8 of a core, or its loop was over 5 ms late" in text
    assert "lient-bound" not in to_markdown(analysis.summarise(study()))


def test_one_table_holds_control_bytes_speed_room_and_load_of_every_config() -> None:
    slow = {key: 8.0 for key in IDS if key.startswith("creative")}
    text = to_markdown(analysis.summarise(study(rates=slow)))
    control, ngram = tables(text, "At a glance")
    assert control[:7] == ["baseline", "itself, 2 starts", "24", "0", "–", "[0.86, 1.00]", "–"]
    assert ngram[:6] == ["ngram", "baseline", "23", "1", "0", "[0.80, 0.99]"]
    assert ngram[6:10] == ["2.00 [2.00, 2.00]", "2.00 [2.00, 2.00]", "0.80 [0.80, 0.80]", "1.00 / 1.00 / 1.00"]


def test_what_is_not_told_from_no_change_is_marked_at_a_glance_and_named_in_the_table_of_speed_ups() -> None:
    first, _, ngram = study()
    fp8 = a_record("fp8", ids=IDS, rates=dict.fromkeys(IDS, 8.0))

    def marks(*again: Record) -> list[tuple[bool, str]]:
        text = to_markdown(analysis.summarise([first, *again, ngram, fp8]))
        glance = [row[6].endswith("†") for row in tables(text, "At a glance") if row[1] == "baseline"]
        return list(zip(glance, [row[9] for row in tables(text, "Speed-up") if row[2] == "code_edit"], strict=True))

    def started_again(rate: float) -> Record:
        return a_record("baseline-2", "baseline", ids=IDS, rates=dict.fromkeys(IDS, rate))

    assert marks() == [(True, "drift not measured")] * 2
    assert marks(started_again(10.0)) == [(False, "slow-down"), (False, "speed-up")]
    assert marks(started_again(30.0)) == [(True, "within the drift of server starts")] * 2


def test_markdown_tables_survive_pipes_and_have_one_width() -> None:
    flags = ["--speculative-config", '{"a|b": 1}']
    text = to_markdown(analysis.summarise(study(flags=flags)))
    assert r'{"a\|b": 1}' in text
    width = None
    for line in text.split("\n"):
        cells = line.replace(r"\|", "").count("|") if line.startswith("|") else None
        assert width is None or cells is None or cells == width, line
        width = cells


def test_one_failure_is_23_of_24_in_every_table() -> None:
    text = to_markdown(analysis.summarise(study(replace={"rag/3": failed("rag/3")})))
    assert "> **Note.** ngram: 23/24 sequential requests answered" in text
    assert "| ngram | ngram | complete | 23/24 | – | 1 |" in text
    assert "| ngram | 1 | 20.0 (8/8) | 200.0 (8/8) | 20.0 (7/8) | 200.0 (7/8) |" in text
    assert "| ngram | baseline | rag | 7/8 |" in text
    assert "| ngram | baseline | all | 23/24 | 22 | 1 | 0 | 0 | 0 | 1 |" in text
    assert "| ngram | 0 | sequential | 23/24 |" in text


def test_formats() -> None:
    assert of((23, 24)) == "23/24"
    assert of(None) == "–"
    assert percent(0.51265) == "51.3 %"
    assert percent(None) == interval(None) == "–"


def test_a_failed_study_renders_without_empty_tables() -> None:
    found = analysis.summarise([a_record("fp8", status="failed", reason="no", passes=[], launches=[])])
    text = to_markdown(found)
    assert "## Speed" not in text
    assert "| fp8 | fp8 | failed | – | – | 0 |" in text
    assert summary.to_csv(found) == "study\n"


def test_same_bytes_from_other_tokens_are_listed_as_such() -> None:
    other = answer("rag/0", token_ids=[1])
    text = to_markdown(analysis.summarise(study(replace={"rag/0": other})))
    assert "| ngram | baseline | rag/0 | same | same bytes, other tokens | – | – | – | 0 | agrees | none |" in text


def test_a_comparison_as_text() -> None:
    a, control, b = study()
    text = comparison(compare.compare_records(a, b, control))
    assert text.startswith(
        "ngram against baseline, baseline-2 (2 server starts): 24/24 prompts judged: same 23, differs 1"
    )
    assert "| creative/0 | differs | differs | text | 0 | 0 | 0 | agrees | none |" in text
    assert text.endswith("creative/0\n  - 'the answer to creative/0'\n  + 'a | b\\nc'\n")
    alone = comparison(compare.compare_records(a, control))
    assert alone == "baseline-2 against baseline (1 server start): 24/24 prompts judged: same 24\n"


def tables(text: str, title: str) -> list[list[str]]:
    """Return the cells of a section's table rows, headers and rules left out."""
    body = text.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in body.split("\n") if line[:1] == "|"]
    ruled = {i for i, row in enumerate(rows) if set(row) == {"---"}}
    return [row for i, row in enumerate(rows) if i not in ruled and i + 1 not in ruled]


def test_step_costs_and_predictions_are_shown() -> None:
    found = analysis.summarise(list(pair()))
    text = to_markdown(found)
    baseline, ngram, errors = tables(text, "What a step costs")
    assert baseline[:4] == ["baseline", "baseline", "–", f"{1000 * BASELINE_S:.2f} (714)"]
    assert [cell.split()[0] for cell in ngram[2:6]] == ["5", f"{1000 * NONE_S:.2f}", "–", f"{1000 * FULL_S:.2f}"]
    assert ngram[6:] == ["3.00", "–", "1.20"]
    assert errors[:5] == ["ngram", "ngram", "6", "0.0 %", "0.0 %"]
    assert errors[7:9] == ["–", "–"]
    rows = tables(text, "Predicted against measured")
    assert [row[1] for row in rows] == [p.id for p in found.config("ngram").prompts]
    for row in rows:
        assert row[4] == row[5]
        assert float(row[2]) / float(row[3]) == pytest.approx(float(row[4]), abs=0.02)
        assert row[8:] == ["+0 %", "yes"]


def test_predictions_are_in_the_csv_run_by_run() -> None:
    baseline, first = pair()
    second = first.model_copy(deep=True)
    second.label = "ngram-2"
    second.passes[0].requests[0].decode_tok_s = None
    rows = {(r["config"], r["prompt"]): r for r in summary.csv_rows(analysis.summarise([baseline, first, second]))}
    one = rows["ngram", "code_edit/0"]
    assert one["predicted_speed_up"].endswith(";")
    assert float(one["predicted_speed_up"].split(";")[0]) == pytest.approx(
        float(one["measured_speed_up"].split(";")[0]), rel=1e-4
    )
    assert rows["ngram", "rag/1"]["predicted_decode_tok_s"].count(";") == 1
    assert rows["baseline", "rag/1"]["predicted_speed_up"] == ""


def test_without_speculation_or_telemetry_neither_is_shown() -> None:
    text = to_markdown(analysis.summarise(study()))
    assert "What a step costs" not in text
    assert "Predicted against measured" not in text
    assert "Energy and clocks" not in text


def test_energy_is_shown_by_workload_and_leg() -> None:
    telemetry = [TelemetrySample(t_s=t / 4, power_w=100.0, sm_clock_mhz=1500, throttle_reasons=4) for t in range(1000)]
    found = a_record("baseline")
    found.passes.append(a_pass([answer("rag/0", at=1.0), answer("rag/1", at=1.0)], kind="concurrent"))
    for one in found.passes:
        one.telemetry = telemetry
    again = a_record("baseline-2", "baseline", replace={"rag/0": failed("rag/0")})
    again.passes[0].telemetry = telemetry
    result = analysis.summarise([found, again])
    # 64 tokens at 10 tok/s after 0.2 s
    joules = 100 * 6.5 / 64
    rows = {row[1]: row[2:] for row in tables(to_markdown(result), "Energy and clocks")}
    assert list(rows) == ["code_edit", "rag", "creative", "all", "16 in flight (baseline)"]
    same = [f"{joules:.3f}", "100", "1,500", "–", "–", "power cap (software)"]
    assert rows["code_edit"] == ["4/4", *same]
    assert rows["rag"] == ["2/2", *same]  # a prompt that failed in one run counts in none
    assert rows["all"] == ["10/10", *same]
    assert rows["16 in flight (baseline)"][:2] == ["2/2", f"{joules / 2:.3f}"]
    values = {row["prompt"]: row["joules_per_token"] for row in summary.csv_rows(result)}
    assert values["code_edit/0"] == pytest.approx(joules, rel=1e-5)
    assert values["rag/0"] is None
