"""Tuning: predicted against counted on every committed run, the cost of a step, the sweep, own traffic."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recordfactory import TTFT, a_record, answer
from samebytes import record as records
from samebytes import replay, tune
from samebytes.errors import RecordError, UsageError
from samebytes.record import Record, Request
from samebytes.replay import ARTICLE, Answer, Settings
from samebytes.tune import Sample, StepCost, Sweep

ROOT = Path(__file__).parents[1]
FIXTURES = Path(__file__).parent / "fixtures" / "replay"


def committed(folder: Path) -> list[Path]:
    """Return the complete runs of a folder that speculated by n-gram."""
    found = []
    for path in sorted(folder.glob("*.json")):
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("status") == "complete" and '"ngram"' in " ".join(raw["config"]["argv"]):
            found.append(path)
    return found


STUDIES = [FIXTURES, *sorted(path.parent for path in (ROOT / "results").glob("*/baseline.json"))]
RUNS = [path for study in STUDIES for path in committed(study)]


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


# --- exactness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_every_study_speculated(study: Path) -> None:
    assert committed(study), f"{study.name} has a baseline and no n-gram run: nothing proves the replay there"


@pytest.mark.parametrize("path", RUNS, ids=named)
def test_counters_are_replayed_from_the_answers(path: Path) -> None:
    """Drafts and draft tokens of every prompt; accepted tokens but for what the last draft leaves open."""
    found = records.load(path)
    checks = tune.check(found)
    assert [c.id for c in checks] == [r.id for r in found.sequential() if r.status == "ok" and r.drafts is not None]
    assert len(checks) > 0
    wrong = [c for c in checks if not c.exact or not c.steps_agree]
    assert wrong == []


@pytest.mark.parametrize("path", RUNS, ids=named)
def test_a_baseline_alone_predicts_the_counters(path: Path) -> None:
    """Without any speculation recorded: exact wherever the speculating server gave the same answer."""
    reference = path.parent / path.name.replace("ngram", "baseline")
    if not reference.exists():
        reference = path.parent / "baseline.json"
    checks = [c for c in tune.check(records.load(path), records.load(reference)) if c.same_answer]
    assert len(checks) > 0
    assert [c.id for c in checks if not c.exact] == []


def test_other_counters_are_no_match() -> None:
    found = records.load(FIXTURES / "ngram.json")
    request = found.passes[0].requests[2]
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        wrong = found.model_copy(deep=True)
        setattr(wrong.passes[0].requests[2], name, getattr(request, name) + 1)
        assert [c.id for c in tune.check(wrong) if not c.exact] == [request.id]
    wrong = found.model_copy(deep=True)
    wrong.passes[0].requests[2].accepted_per_pos = [5, 5, 3, 1, 1]
    assert [c.id for c in tune.check(wrong) if not c.exact] == [request.id]
    wrong = found.model_copy(deep=True)
    (t0, one), (t1, _), *rest = request.chunks
    wrong.passes[0].requests[2].chunks = [(t0, one), (t1, 2), *rest]
    assert [c.id for c in tune.check(wrong) if not c.steps_agree] == [request.id]


def test_a_run_that_did_not_speculate_is_refused() -> None:
    with pytest.raises(UsageError, match="did not speculate"):
        tune.check(records.load(FIXTURES / "baseline.json"))
    with pytest.raises(UsageError, match="did not speculate"):
        tune.timings(records.load(FIXTURES / "baseline.json"))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], None),
        (["--speculative-config", json.dumps(ARTICLE.flag())], ARTICLE),
        (["--speculative-config=" + json.dumps(ARTICLE.flag())], ARTICLE),
        (["--speculative-config", '{"method": "ngram_gpu", "num_speculative_tokens": 5}'], None),
    ],
)
def test_settings_are_read_from_the_command_line(argv: list[str], expected: Settings | None) -> None:
    found = a_record("any", flags=argv)
    assert tune.settings_of(found) == expected
    assert tune.speculates(found) == bool(argv)


@pytest.mark.parametrize(
    ("vllm", "gpu", "expected"),
    [("0.20.0", "H200", "v1"), ("0.32.0", None, "v1"), ("0.32.1+cu130", "H200", "v2"), (None, "H200", "v1")],
)
def test_the_rule_is_the_servers(vllm: str | None, gpu: str | None, expected: replay.Runner) -> None:
    found = a_record("any")
    found.versions.vllm, found.machine.gpu = vllm, gpu
    assert tune.runner_of(found) == expected


# --- cost of a step ------------------------------------------------------------------------------

PLAIN_S, SLOWER, VERIFY = 0.010, 1.1, 1.2


def quoting(seed: int) -> tuple[list[int], list[int]]:
    """Return a prompt and an answer that quotes it by stretches."""
    rng = random.Random(seed)
    prompt = [rng.randrange(1000) for _ in range(300)]
    said: list[int] = []
    while len(said) < 120:
        at = rng.randrange(250)
        said += prompt[at : at + rng.randrange(4, 30)] + [rng.randrange(1000) for _ in range(rng.randrange(1, 12))]
    return prompt, said[:120]


def pair(changed: int | None = None, *, once: bool = False) -> tuple[Record, Record]:
    """Return a baseline of 10 ms a step, and an n-gram run of 11 ms a plain and 13.2 ms a verifying step.

    Two chunks of the prompt numbered ``changed`` were merged on the way. With ``once`` every answer quotes once, for
    two drafts' length.
    """
    plain, speculated = {}, {}
    for i in range(6):
        prompt, said = quoting(i)
        if once:
            said = [*range(2000, 2040), *prompt[50:61]]
        key = f"{('code_edit', 'rag')[i % 2]}/{i}"
        common: dict[str, Any] = {"token_ids": said, "prompt_token_ids": prompt, "prompt_tokens": len(prompt)}
        plain[key] = answer(key, rate=1 / PLAIN_S, n=len(said), **common)
        t, chunks = TTFT, []
        for number, step in enumerate(Answer(prompt, said).steps(ARTICLE)):
            t += 0 if number == 0 else PLAIN_S * SLOWER * (VERIFY if step.drafted else 1)
            chunks.append((t, step.tokens))
        rate = (len(said) - 1) / (t - TTFT)
        if i == changed:
            chunks[3:5] = [(chunks[4][0], (chunks[3][1] or 0) + (chunks[4][1] or 0))]
        counters = Answer(prompt, said).replay(ARTICLE)
        speculated[key] = answer(
            key,
            n=len(said),
            chunks=chunks,
            decode_tok_s=rate,
            drafts=counters.drafts,
            draft_tokens=counters.draft_tokens,
            accepted_tokens=counters.accepted_tokens,
            **common,
        )
    flags = ["--speculative-config", json.dumps(ARTICLE.flag())]
    return (
        a_record("baseline", ids=list(plain), replace=plain),
        a_record("ngram", ids=list(speculated), replace=speculated, flags=flags),
    )


@pytest.mark.parametrize("changed", [None, 2])
def test_a_steps_cost_is_found_from_the_chunks(changed: int | None) -> None:
    baseline, speculated = pair(changed)
    found = tune.pool(tune.timings(speculated, baseline))
    assert found is not None
    assert found.overhead == pytest.approx(SLOWER)
    assert dict(found.ratios)[5] == pytest.approx(VERIFY)
    assert found.n == 6


def test_predicted_speed_is_the_measured_one_where_the_model_holds() -> None:
    baseline, speculated = pair()
    predictions = tune.predict(baseline, speculated)
    assert [p.id for p in predictions] == [r.id for r in baseline.sequential()]
    for prediction in predictions:
        # drafts of fewer than five tokens cost the same here, the model's line puts them cheaper
        assert prediction.error == pytest.approx(0, abs=0.02)
        assert prediction.speed_up == pytest.approx(prediction.measured_speed_up, rel=0.02)
        assert prediction.interval is not None
        assert prediction.interval.low <= prediction.speed_up * 1.001
        assert prediction.same_answer
    other = tune.predict(baseline, speculated, Settings(3, 2, 4))
    assert all(p.measured_tok_s is None and p.error is None and p.tok_s is not None for p in other)


def test_a_prompt_does_not_predict_itself() -> None:
    """Leave one out: a prompt whose own steps were ten times as slow is predicted from the others."""
    baseline, speculated = pair()
    slow = speculated.passes[0].requests[0]
    slow.chunks = [(t * 10, n) for t, n in slow.chunks]
    honest = {p.id: p.speed_up for p in tune.predict(*pair())}
    assert tune.predict(baseline, speculated)[0].speed_up == pytest.approx(honest[slow.id])


def test_prompts_whose_chunks_are_no_steps_of_the_replay_are_left_out() -> None:
    baseline, speculated = pair()
    broken = speculated.passes[0].requests[0]
    first, second, *rest = [n for _, n in broken.chunks]
    moved = [first, (second or 0) + 1, *rest]
    broken.chunks = [(t, n) for (t, _), n in zip(broken.chunks, moved, strict=True)]
    unknown = speculated.passes[0].requests[1]
    unknown.chunks = [(t, None) for t, _ in unknown.chunks]
    assert {t.id for t in tune.timings(speculated, baseline)} == {r.id for r in speculated.sequential()[2:]}


def test_without_enough_steps_there_is_no_cost() -> None:
    assert tune.pool([]) is None
    assert tune.pool([tune.Timing("a", 1.0, {5: 1.2}), tune.Timing("b", 1.0, {5: 1.2})]) is None


def test_a_prompt_with_few_steps_of_a_kind_says_nothing_of_it() -> None:
    baseline, speculated = pair(once=True)
    assert all(0 < (r.drafts or 0) < tune.MIN_STEPS for r in speculated.sequential())
    assert [t.ratios for t in tune.timings(speculated, baseline)] == [{}] * 6
    assert tune.pool(tune.timings(speculated, baseline)) is None
    _, speculated = pair()
    short, _ = pair()
    for request in short.passes[0].requests:
        request.chunks = request.chunks[: tune.MIN_STEPS]  # one gap fewer
    assert all(t.overhead is None for t in tune.timings(speculated, short))


def test_ratios_run_straight() -> None:
    cost = StepCost(1.0, ((2, 1.2), (5, 1.5)))
    assert [cost.ratio(d) for d in (0, 1, 2, 3, 5)] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.5])
    assert cost.ratio(10) == pytest.approx(2.0)
    assert cost.reach == 5
    # a verifying step that measured quicker than a plain one
    assert [StepCost(1.0, ((5, 0.9),)).ratio(d) for d in (1, 5, 10)] == [1.0, 1.0, 1.0]


def test_speed_up_by_hand() -> None:
    # prompt's step, a plain one, and one that verifies five tokens of which two are accepted: 5 tokens
    found = Answer([7, 1, 2, 3, 4, 9, 8], [1, 2, 3, 4, 5]).replay(ARTICLE)
    assert (found.steps, found.drafts, found.accepted_tokens) == (3, 1, 2)
    assert StepCost(1.1, ((5, 1.4),)).speed_up(found) == pytest.approx(4 / (1.1 * (1 + 1.4)))


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
    sweep = Sweep(made(), StepCost(1.0, ((5, 1.2),), n=6))
    lines = tune.text(sweep).splitlines()
    command = next(line for line in lines if line.startswith("--speculative-config"))
    pasted = subprocess.run(
        ["sh", "-c", f'for a in {command}; do echo "$a"; done'], capture_output=True, text=True, check=True
    )
    option, value = pasted.stdout.splitlines()
    assert option == "--speculative-config"
    assert Settings.of(json.loads(value)) == sweep.best().settings
    assert any("measured on 6 prompts" in line for line in lines)
    assert any("extrapolated" in line for line in lines) == (sweep.best().settings.k > 5)


def test_where_nothing_helps_it_says_so() -> None:
    said = tune.text(Sweep(made(), StepCost(4.0, ((5, 1.2),), n=6)))
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
    assert whole.cost.overhead == pytest.approx(SLOWER)
    assert tune.of_records([tmp_path], ratio=2.0).cost == tune.assumed(2.0)

    only = tune.of_records([tmp_path / "ngram.json"])
    assert len(only.samples) == 6
    assert only.cost.overhead == 1.0
    assert dict(only.cost.ratios)[5] == pytest.approx(VERIFY)


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


@pytest.mark.parametrize(
    "changes", [{"status": "timeout"}, {"token_ids": None}, {"prompt_token_ids": None}, {"completion_tokens": 121}]
)
def test_only_whole_answers_are_replayed(changes: dict[str, Any]) -> None:
    request = pair()[0].passes[0].requests[0]
    assert tune.replayable(request)
    assert not tune.replayable(Request.model_validate(request.model_dump() | changes))


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
    assert line not in str(caught.value).replace("line 3", "")


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
