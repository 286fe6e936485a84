"""Tuning: the sweep, its text, own traffic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from ngramfactory import BASELINE_S, FULL_S, NONE_S, pair, quoting
from samebytes import record as records
from samebytes import tune
from samebytes.errors import RecordError, UsageError
from samebytes.replay import ARTICLE, Answer, Settings
from samebytes.speculation import StepCost
from samebytes.tune import Sample, Sweep

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


def test_a_choice_can_be_kept_to_lengths_whose_cost_is_known() -> None:
    cost = StepCost(0.010, 0.010, 0.011, ((3, 0.012), (5, 0.013)), n=6)
    sweep = Sweep(made(), cost)
    kept = sweep.best(lengths=dict(cost.full))
    assert kept.settings.k in (3, 5)
    assert kept.speed_up == max(sweep.speed_up(s) for s in tune.GRID if s.k in (3, 5))
    assert [cost.known(k) for k in (1, 3, 4, 5, 6)] == [
        "interpolated",
        "measured",
        "interpolated",
        "measured",
        "extrapolated",
    ]


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
    other.label = "ngram_batch_invariant"
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


def test_a_measured_config_is_held_against_its_prediction() -> None:
    """Runs whose steps take exactly what the cost says: the prediction made without the run is what it measured."""
    tuned = Settings(5, 1, 10)
    baseline, usual = pair()
    _, chosen = pair(settings=tuned)
    chosen.label = chosen.config.name = "ngram_tuned"
    found = tune.trials([baseline, usual, chosen])
    assert [(t.over, t.workload) for t in found] == [
        (over, workload) for over in ("baseline", "ngram") for workload in ("code_edit", "rag", None)
    ]
    for trial in found:
        assert (trial.config, trial.settings, trial.cost.known(5)) == ("ngram_tuned", tuned, "measured")
        assert trial.measured is not None
        assert trial.predicted == pytest.approx(trial.measured.geometric_mean, rel=0.02)
        assert trial.measured.n == (6 if trial.workload is None else 3)
    # its own steps are not what it is predicted from
    for request in chosen.passes[0].requests:
        request.decode_tok_s = (request.decode_tok_s or 0) / 2
        request.chunks = [(2 * t, n) for t, n in request.chunks]
    slower = tune.trials([baseline, usual, chosen])
    assert [t.predicted for t in slower] == [t.predicted for t in found]
    assert not any(t.held for t in slower)

    # before the measurement the prediction stands alone, and it is the same
    before = tune.trials([baseline, usual], {"ngram_tuned": tuned, "ngram": ARTICLE})
    assert [(t.config, t.over, t.workload, t.predicted) for t in before] == [
        (t.config, t.over, t.workload, t.predicted) for t in found
    ]
    assert {t.measured for t in before} == {t.held for t in before} == {None}

    # the cost of a run under other circumstances says nothing
    usual.config.env = {"VLLM_BATCH_INVARIANT": "1"}
    assert tune.trials([baseline, usual, chosen]) == []
    assert tune.trials([baseline]) == []


def test_records_without_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no records in"):
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


def test_a_record_that_cannot_be_read_is_no_record_less(tmp_path: Path) -> None:
    for found in pair():
        records.save(found, tmp_path / f"{found.label}.json")
    path = tmp_path / "ngram.json"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(RecordError, match=r"ngram\.json is not JSON"):
        tune.of_records([tmp_path])


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
    assert [(t.id, t.workload, t.first) for t in said] == [
        ("1.1", "transcripts", True),
        ("2.1", "mail", True),
        ("3.1", "transcripts", True),
        ("3.2", "transcripts", False),
    ]
    assert said[1].prompt == f"user\nQuote: {SECRET}\nassistant\n"
    assert said[2].prompt == "system\nBe brief.\nuser\nHello\nassistant\n"
    # from the answer before on
    assert said[3].prompt == f"\nuser\nSay {SECRET}\nassistant\n"
    assert said[3].answer == SECRET
    # with an answer named apart, the assistant's earlier turns are what it was given
    line = {"messages": [{"role": r, "content": r} for r in ("user", "assistant", "user")], "answer": "b"}
    given = "user\nuser\nassistant\nassistant\nuser\nuser\nassistant\n"
    assert tune.turns(written(tmp_path / "named.jsonl", [line])) == [tune.Turn("1.1", "transcripts", given, "b", True)]
    line = {"prompt": "a\u2028b", "response": "c\u2028d"}
    assert tune.turns(written(tmp_path / "odd.jsonl", [line])) == [
        tune.Turn("1.1", "transcripts", "a\u2028b", "c\u2028d", True)
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


def tokenizer_file(path: Path, kind: str) -> Path:
    """Write the tokenizer.json of a small model of one kind, trained on the lines above."""
    texts = [json.dumps(line) for line in LINES]
    if kind == "byte-level BPE":
        made, trainer = Tokenizer(models.BPE()), trainers.BpeTrainer(vocab_size=400, show_progress=False)
        trainer.initial_alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.pre_tokenizer = pre_tokenizers.ByteLevel()
    elif kind == "unigram":
        made = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(vocab_size=100, unk_token="?", special_tokens=["?"], show_progress=False)
    else:
        made = Tokenizer(models.WordLevel(unk_token="?"))
        trainer = trainers.WordLevelTrainer(special_tokens=["?"], show_progress=False)
        made.pre_tokenizer = pre_tokenizers.Whitespace()
    # a model's own template would put these into every text
    made.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    made.train_from_iterator(texts, trainer)
    made.save(str(path))
    return path


@pytest.mark.parametrize("kind", ["byte-level BPE", "unigram", "word level"])
def test_own_traffic_is_tokenised_and_only_counted(tmp_path: Path, kind: str) -> None:
    own = written(tmp_path / "own.jsonl", LINES)
    sweep = tune.of_transcripts(own, tokenizer_file(tmp_path / "tokenizer.json", kind), ratio=1.1)
    assert [s.id for s in sweep.samples] == ["1.1", "2.1", "3.1", "3.2"]
    quoted, first, second = sweep.samples[0].answer, sweep.samples[2].answer, sweep.samples[3].answer
    assert quoted.replay(ARTICLE).accepted_from_prompt > 0
    # the conversation's second answer follows on its first
    assert second.n_prompt > first.n_prompt + first.n_answer
    assert "merger" not in tune.text(sweep) + json.dumps(sweep.rows())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["own.jsonl", "tokenizer.json"]


def test_own_traffic_that_cannot_be_tokenised_is_not_quoted(tmp_path: Path) -> None:
    own = written(tmp_path / "own.jsonl", LINES)
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json", "word level")
    said = tmp_path / "said.json"  # its own message would quote it: invalid type: string "...", expected ...
    said.write_text(json.dumps(SECRET))
    short = written(tmp_path / "short.jsonl", [{"prompt": "a", "response": ""}])
    for path, wrong, words in (
        (own, own, "own.jsonl is no tokenizer.json"),
        (own, said, "said.json is no tokenizer.json"),
        (own, tmp_path / "none.json", "no tokenizer file at"),
        (short, tokenizer, "short.jsonl holds no answer of two tokens or more"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            tune.of_transcripts(path, wrong)
        assert "merger" not in str(caught.value)


@pytest.mark.engine
def test_the_models_own_tokenizer_file(embedded_model: Path, tmp_path: Path) -> None:
    own = written(tmp_path / "own.jsonl", LINES)
    sweep = tune.of_transcripts(own, embedded_model / "tokenizer.json")
    assert sweep.samples[0].answer.replay(ARTICLE).accepted_from_prompt > 0


def test_without_the_package_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"pip install 'samebytes\[tune\]'"):
        tune.transcripts(written(tmp_path / "own.jsonl", LINES), tmp_path / "tokenizer.json")


def test_random_weights_are_said_before_any_setting() -> None:
    said = tune.text(tune.of_records([Path(__file__).parents[1] / "results" / "h200-qwen3-32b-shape"]))
    assert said.startswith("note: random weights: speed and memory of the kernels only\n")
