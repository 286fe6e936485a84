"""Tuning: the sweep, its text, own traffic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ngramfactory import BASELINE_S, FULL_S, NONE_S, pair, quoting
from samebytes import record as records
from samebytes import tune
from samebytes.errors import RecordError, UsageError
from samebytes.replay import ARTICLE, Answer, Settings
from samebytes.speculation import StepCost
from samebytes.tune import Sample, Sweep

ROOT = Path(__file__).parents[1]


# --- the sweep -----------------------------------------------------------------------------------


def made(n: int = 4) -> list[Sample]:
    return [Sample(f"{w}/{i}", w, Answer(*quoting(10 * i + len(w)))) for w in ("code_edit", "rag") for i in range(n)]


def test_the_best_is_the_greatest_and_drafts_least() -> None:
    sweep = Sweep(made(), tune.assumed(1.3))
    for workload in ("code_edit", "rag", None):
        best = sweep.best(workload)
        values = {settings: sweep.speed_up(settings, workload) for settings in tune.GRID}
        assert best.speed_up == max(values.values())
        equals = [s for s, value in values.items() if value == pytest.approx(best.speed_up, rel=1e-9)]
        assert best.settings.k == min(s.k for s in equals)
        assert best.article == values[ARTICLE]
        assert best.gain >= 1
        assert best.held_out is not None
        assert best.held_out <= best.gain * (1 + 1e-9)
    assert sweep.best().n == 8
    assert len(tune.GRID) == 400


def test_choosing_on_a_prompt_flatters_it() -> None:
    """Two prompts that want opposite settings: on unseen prompts the choice is worse than on seen ones."""
    looping = Sample("a/0", "a", Answer([1], [2, 3] * 40))
    # Every single token has been seen, and something else always follows.
    prompt = [n for i in range(40) for n in (i, 100 + i)]
    misled = Sample("a/1", "a", Answer(prompt, list(range(39, -1, -1))))
    best = Sweep([looping, misled], tune.assumed(3.0)).best("a")
    assert best.held_out is not None
    assert best.held_out < best.gain


def test_a_single_prompt_has_nothing_held_out() -> None:
    assert Sweep(made(1)[:1], tune.assumed()).best().held_out is None


def test_rows_hold_counts_and_no_text() -> None:
    samples = made(2)
    sweep = Sweep(samples, tune.assumed(1.2))
    rows = sweep.rows()
    assert len(rows) == 3 * 400
    row = next(r for r in rows if (r["workload"], r["k"], r["min_n"], r["max_n"]) == ("rag", 5, 2, 4))
    found = [s.answer.replay(ARTICLE) for s in samples if s.workload == "rag"]
    assert row["drafts"] == sum(r.drafts for r in found)
    assert row["accepted_tokens"] == sum(r.accepted_tokens for r in found)
    assert row["acceptance_rate"] == pytest.approx(row["accepted_tokens"] / row["draft_tokens"], abs=1e-4)
    assert row["speed_up"] == pytest.approx(sweep.speed_up(ARTICLE, "rag"), abs=1e-4)
    assert json.loads(json.dumps(rows)) == rows


def test_the_flag_can_be_pasted() -> None:
    sweep = Sweep(made(), StepCost(0.010, 0.010, 0.011, ((5, 0.012),), n=6))
    lines = tune.text(sweep).splitlines()
    command = next(line for line in lines if line.startswith("--speculative-config"))
    pasted = subprocess.run(
        ["sh", "-c", f'for a in {command}; do echo "$a"; done'], capture_output=True, text=True, check=True
    )
    option, value = pasted.stdout.splitlines()
    assert option == "--speculative-config"
    assert Settings.of(json.loads(value)) == sweep.best().settings
    assert any("measured on 6 prompts" in line for line in lines)
    k = sweep.best().settings.k
    assert any("extrapolated" in line for line in lines) == (k > 5)
    assert any("interpolated" in line for line in lines) == (k < 5)


def test_where_nothing_helps_it_says_so() -> None:
    said = tune.text(Sweep(made(), StepCost(0.010, 0.040, 0.044, ((5, 0.048),), n=6)))
    assert "leave it off" in said
    assert "--speculative-config" not in said


def test_records_give_answers_and_cost(tmp_path: Path) -> None:
    baseline, speculated = pair()
    records.save(baseline, tmp_path / "baseline.json")
    alone = tune.of_records([tmp_path])
    assert (len(alone.samples), alone.cost) == (6, tune.assumed())

    # A run under other environment variables is another experiment.
    other = speculated.model_copy(deep=True)
    other.config.env = {"VLLM_BATCH_INVARIANT": "1"}
    records.save(other, tmp_path / "ngram_batch_invariant.json")
    assert tune.of_records([tmp_path]).cost == tune.assumed()

    records.save(speculated, tmp_path / "ngram.json")
    (tmp_path / "summary.json").write_text("{}")
    whole = tune.of_records([tmp_path])
    assert whole.cost.n == 6
    assert whole.cost.baseline_s == pytest.approx(BASELINE_S)
    assert (whole.cost.none_s, whole.cost.full) == (pytest.approx(NONE_S), ((5, pytest.approx(FULL_S)),))
    assert tune.of_records([tmp_path], ratio=2.0).cost == tune.assumed(2.0)

    only = tune.of_records([tmp_path / "ngram.json"])
    assert len(only.samples) == 6
    # without a baseline a step that drafts nothing stands for its step
    assert only.cost.baseline_s == only.cost.none_s == pytest.approx(NONE_S)


def test_records_without_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="token ids"):
        tune.of_records([tmp_path])
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(RecordError, match="summary.json"):
        tune.of_records([tmp_path / "summary.json"])
    blind, _ = pair()
    for request in blind.passes[0].requests:
        request.prompt_token_ids = None
    records.save(blind, tmp_path / "blind.json")
    with pytest.raises(UsageError, match="token ids"):
        tune.of_records([tmp_path / "blind.json"])


# --- own traffic ---------------------------------------------------------------------------------

SECRET = "the merger closes on Friday"
LINES = [
    {"prompt": f"Repeat: {SECRET}. Once more: {SECRET}.", "response": f"{SECRET}. {SECRET}."},
    {"messages": [{"role": "user", "content": f"Quote: {SECRET}"}], "answer": SECRET, "workload": "mail"},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "image_url", "image_url": "…"}]},
            {"role": "assistant", "content": "Hello there, what can I do?"},
            {"role": "user", "content": f"Say {SECRET}"},
            {"role": "assistant", "content": SECRET},
        ]
    },
]


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n", encoding="utf-8")
    return path


def test_every_shape_of_transcript_is_read(tmp_path: Path) -> None:
    said = tune.turns(written(tmp_path / "own.jsonl", LINES))
    assert [(t.id, t.workload) for t in said] == [
        ("1.1", "transcripts"),
        ("2.1", "mail"),
        ("3.1", "transcripts"),
        ("3.2", "transcripts"),
    ]
    assert said[1].prompt == f"user\nQuote: {SECRET}\n"
    assert said[2].prompt == "system\nBe brief.\nuser\nHello\n"
    assert said[3].prompt == f"{said[2].prompt}assistant\n{said[2].answer}\nuser\nSay {SECRET}\n"
    assert said[3].answer == SECRET
    # with an answer named apart, the assistant's earlier turns are what it was given
    line = {"messages": [{"role": r, "content": r} for r in ("user", "assistant", "user")], "answer": "b"}
    given = "user\nuser\nassistant\nassistant\nuser\nuser\n"
    assert tune.turns(written(tmp_path / "named.jsonl", [line])) == [tune.Turn("1.1", "transcripts", given, "b")]
    line = {"prompt": "a\u2028b", "response": "c\u2028d"}
    assert tune.turns(written(tmp_path / "odd.jsonl", [line])) == [
        tune.Turn("1.1", "transcripts", "a\u2028b", "c\u2028d")
    ]


@pytest.mark.parametrize(
    "line", ["not json", "[]", "3", '{"prompt": "a"}', '{"messages": 3}', '{"prompt": 3, "response": "b"}']
)
def test_a_line_of_another_shape_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "own.jsonl", LINES[:1])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UsageError, match=r"line 3: neither") as caught:
        tune.turns(path)
    assert SECRET not in str(caught.value)
    assert line not in str(caught.value).replace("line 3", "").replace(str(path), "")


def test_a_missing_transcript_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        tune.turns(tmp_path / "none.jsonl")


TOKENISE = """
import json, sys
from pathlib import Path
from samebytes import tune
from samebytes.errors import UsageError
own, tokenizer = map(Path, sys.argv[1:3])
sweep = tune.of_transcripts(own, tokenizer, ratio=1.1)
refused = []
for path, wrong in ((own, own), (own, Path("none.json")), (own.with_name("short.jsonl"), tokenizer)):
    try:
        tune.of_transcripts(path, wrong)
    except UsageError as error:
        refused.append(str(error))
print(json.dumps({
    "ids": [s.id for s in sweep.samples],
    "accepted": sweep.samples[0].answer.replay(tune.ARTICLE).accepted_from_prompt,
    "text": tune.text(sweep), "rows": sweep.rows(), "refused": refused,
}))
"""


@pytest.mark.engine
def test_own_traffic_is_tokenised_and_only_counted(engine_python: Path, embedded_model: Path, tmp_path: Path) -> None:
    """In the engine's environment, which has the tokenizers package."""
    own = written(tmp_path / "own.jsonl", LINES)
    written(tmp_path / "short.jsonl", [{"prompt": "a", "response": ""}])
    done = subprocess.run(
        [engine_python, "-c", TOKENISE, own, embedded_model / "tokenizer.json"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ids"] == ["1.1", "2.1", "3.1", "3.2"]
    assert found["accepted"] > 0
    assert "merger" not in done.stdout
    assert [r.split(":")[0].split("/")[-1] for r in found["refused"]] == [
        "own.jsonl is no tokenizer.json",
        "no tokenizer file at none.json",
        "short.jsonl holds no answer of two tokens or more",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["own.jsonl", "short.jsonl"]


def test_without_the_package_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="pip install tokenizers"):
        tune.transcripts(written(tmp_path / "own.jsonl", LINES), tmp_path / "tokenizer.json")
