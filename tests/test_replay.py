"""The replay: against its rule spelled out, against real counters, and its price."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebytes import replay
from samebytes.replay import ARTICLE, Answer, Conversation, Draft, Settings, Step

SRC = Path(__file__).parents[1] / "src"
FIXTURES = Path(__file__).parent / "fixtures" / "replay"
GRID = [Settings(k, low, high) for k in range(1, 11) for low in range(1, 6) for high in range(low, 11)]

# Few distinct tokens, so that n-grams come again.
ids = st.integers(0, 3)
texts = st.tuples(st.lists(ids, min_size=1, max_size=30), st.lists(ids, max_size=30))
any_settings = st.sampled_from(GRID)


def earliest(context: Sequence[int], settings: Settings) -> tuple[list[int], int | None]:
    """The v1 rule as it reads: longest suffix that occurred before, its earliest occurrence, the next k tokens."""
    for n in range(settings.max_n, settings.min_n - 1, -1):
        for start in range(len(context) - n):
            if list(context[start : start + n]) == list(context[-n:]):
                return list(context[start + n : start + n + settings.k]), start + n
    return [], None


def latest_filled(context: Sequence[int], settings: Settings) -> tuple[list[int], int | None]:
    """The v2 rule as it reads: longest suffix, its latest occurrence, k tokens whatever happens."""
    for n in range(settings.max_n, settings.min_n - 1, -1):
        for start in range(len(context) - n - 1, -1, -1):
            if list(context[start : start + n]) == list(context[-n:]):
                copied = list(context[start + n : start + n + settings.k])
                return (copied + [context[-1]] * settings.k)[: settings.k], start + n
    return [context[-1]] * settings.k, None


def spelled_out(
    prompt: Sequence[int], answer: Sequence[int], settings: Settings, rule: Callable[..., tuple[list[int], int | None]]
) -> list[Draft]:
    """Speculate step by step, comparing every draft with the answer."""
    drafts, at = [], 1
    while at < len(answer):
        draft, start = rule([*prompt, *answer[:at]], settings)
        accepted = 0
        while accepted < len(draft) and answer[at : at + accepted + 1] == draft[: accepted + 1]:
            accepted += 1
        if draft:
            drafts.append(Draft(at, len(draft), accepted, start))
        at += accepted + 1
    return drafts


@given(texts, any_settings)
def test_v1_is_the_longest_suffix_at_its_earliest_occurrence(
    text: tuple[list[int], list[int]], settings: Settings
) -> None:
    prompt, answer = text
    assert list(Answer(prompt, answer).drafts(settings)) == spelled_out(prompt, answer, settings, earliest)


@given(texts, any_settings)
def test_v2_is_the_latest_occurrence_and_always_full(text: tuple[list[int], list[int]], settings: Settings) -> None:
    prompt, answer = text
    assert list(Answer(prompt, answer, runner="v2").drafts(settings)) == spelled_out(
        prompt, answer, settings, latest_filled
    )


@given(texts, any_settings, st.sampled_from(["v1", "v2"]))
def test_a_draft_can_be_spelled_out(
    text: tuple[list[int], list[int]], settings: Settings, runner: replay.Runner
) -> None:
    prompt, answer = text
    whole = Answer(prompt, answer, runner=runner)
    rule = earliest if runner == "v1" else latest_filled
    for draft in whole.drafts(settings):
        context = [*prompt, *answer[: draft.at]]
        assert whole.proposal(draft) == rule(context, settings)[0]
        n = whole.looked_up(draft, settings)
        if draft.start is None:
            assert n == 0
        else:
            assert settings.min_n <= n <= settings.max_n
            assert context[draft.start - n : draft.start] == context[-n:]
            longer = context[-n - 1 :]
            assert n == settings.max_n or len(longer) == n or not occurs(longer, context[:-1])


def occurs(part: Sequence[int], whole: Sequence[int]) -> bool:
    return any(list(whole[i : i + len(part)]) == list(part) for i in range(len(whole) - len(part) + 1))


@given(texts, any_settings, st.sampled_from(["v1", "v2"]))
def test_counters_follow_from_the_drafts(
    text: tuple[list[int], list[int]], settings: Settings, runner: replay.Runner
) -> None:
    prompt, answer = text
    whole = Answer(prompt, answer, runner=runner)
    drafts, steps, found = list(whole.drafts(settings)), whole.steps(settings), whole.replay(settings)
    assert (found.drafts, found.draft_tokens) == (len(drafts), sum(d.drafted for d in drafts))
    assert found.accepted_tokens == sum(found.accepted_per_pos) == sum(d.accepted for d in drafts)
    assert found.accepted_per_pos == tuple(sum(d.accepted > i for d in drafts) for i in range(settings.k))
    assert found.tokens == len(answer) == sum(step.tokens for step in steps)
    assert found.steps == len(steps)
    assert [step.drafted for step in steps if step.drafted] == [d.drafted for d in drafts]
    assert found.drafts_of == tuple(sum(d.drafted == n for d in drafts) for n in range(settings.k + 1))
    own = [d for d in drafts if d.start is None or d.start >= len(prompt)]
    assert found.drafts_from_prompt == len(drafts) - len(own)
    assert found.accepted_from_prompt == found.accepted_tokens - sum(d.accepted for d in own)
    # The server counts what a last draft accepts beyond the answer; here that is bounded, nothing else is.
    beyond = [d.drafted - d.accepted for d in drafts if d.at + d.accepted == len(answer)]
    assert found.overrun == sum(beyond)


def test_one_draft_by_hand() -> None:
    #         0  1  2  3  4  5  6 |  7  8  9 10
    prompt, answer = [7, 1, 2, 3, 4, 9, 8], [1, 2, 3, 5]
    whole = Answer(prompt, answer)
    # After "1" nothing two tokens long has been seen; after "1 2" the prompt goes on 3 4 9 8 1, of which 3 comes.
    assert list(whole.drafts(ARTICLE)) == [Draft(at=2, drafted=5, accepted=1, start=3)]
    assert whole.steps(ARTICLE) == [Step(1, 0), Step(1, 0), Step(2, 5)]
    # A single token is enough: after "1" come 2 3 4 9 8; with 2 3 accepted and 5 spoken the answer is over.
    assert list(whole.drafts(Settings(5, 1, 4))) == [Draft(at=1, drafted=5, accepted=2, start=2)]


def test_own_output_is_told_from_the_prompt() -> None:
    found = Answer([1], [5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7]).replay(ARTICLE)
    assert found.drafts > 0
    assert found.drafts_from_prompt == found.accepted_from_prompt == 0


def test_a_draft_beyond_the_end_is_bounded() -> None:
    # After 1 2 the draft is 3 4 9 9 9: the answer ends with the 3, what the model would have said next nobody knows.
    found = Answer([1, 2, 3, 4, 9, 9, 9], [1, 2, 3]).replay(ARTICLE)
    assert (found.drafts, found.draft_tokens, found.accepted_tokens, found.overrun) == (1, 5, 1, 4)
    assert found.steps == 3


@pytest.mark.parametrize("tokens", [[], [4]])
def test_an_answer_too_short_to_speculate(tokens: list[int]) -> None:
    for runner in ("v1", "v2"):
        found = Answer([4, 4, 4], tokens, runner=runner, max_model_len=16).replay(Settings(5, 1, 4))
        assert (found.steps, found.drafts, found.accepted_tokens) == (len(tokens), 0, 0)


@given(texts, any_settings, st.integers(0, 12))
def test_a_limit_far_away_changes_nothing(text: tuple[list[int], list[int]], settings: Settings, further: int) -> None:
    prompt, answer = text
    limit = len(prompt) + len(answer) + 2 * settings.k + further
    assert Answer(prompt, answer, max_model_len=limit).replay(settings) == Answer(prompt, answer).replay(settings)


@given(st.lists(texts, min_size=1, max_size=4), any_settings, st.sampled_from(["v1", "v2"]), st.integers(0, 12))
def test_an_answer_of_a_conversation_is_one_to_all_that_precedes_it(
    turns: list[tuple[list[int], list[int]]], settings: Settings, runner: replay.Runner, further: int
) -> None:
    conversation, before = Conversation(runner), []
    for prompt, answer in turns:
        limit = len(before) + len(prompt) + len(answer) + further
        alone = Answer([*before, *prompt], answer, runner=runner, max_model_len=limit)
        within = Answer(prompt, answer, runner=runner, max_model_len=limit, conversation=conversation)
        assert list(within.drafts(settings)) == list(alone.drafts(settings))
        before += prompt + answer
        found = within  # what comes later changes nothing
    Answer([1, 2, 3], [1, 2, 3], runner=runner, conversation=conversation)
    assert found.replay(settings) == alone.replay(settings)


def test_near_the_limit_as_vllm_counted_it() -> None:
    """Counters of vLLM 0.32.0 on answers that run into max_model_len, where drafts of zeros are verified."""
    recorded = json.loads((FIXTURES / "near-limit.json").read_text())
    settings, limit = Settings(*recorded["settings"]), recorded["max_model_len"]
    unlimited = 0
    for request in recorded["requests"]:
        prompt, answer = request["prompt_ids"], request["answer_ids"]
        assert len(prompt) + len(answer) == limit
        found = Answer(prompt, answer, max_model_len=limit).replay(settings)
        assert (found.drafts, found.draft_tokens) == (request["drafts"], request["draft_tokens"])
        assert found.accepted_tokens <= request["accepted_tokens"] <= found.accepted_tokens + found.overrun
        unlimited += Answer(prompt, answer).replay(settings).draft_tokens != request["draft_tokens"]
        whole = Answer(prompt, answer, max_model_len=limit)
        zeros = [whole.proposal(d) for d in whole.drafts(settings) if d.start is None]
        assert all(proposed == [0] * len(proposed) for proposed in zeros)
    assert unlimited >= 5  # else the limit was not what decided


def test_settings_are_vllms() -> None:
    flag = ARTICLE.flag()
    assert flag == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
    assert Settings.of(flag) == ARTICLE
    assert Settings.of({"method": "ngram", "num_speculative_tokens": 3}) == Settings(3, 5, 5)
    assert Settings.of({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}) == Settings(3, 4, 4)
    assert Settings.of({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2}) == Settings(3, 2, 2)


@pytest.mark.parametrize(
    "flag",
    [
        {"method": "eagle", "num_speculative_tokens": 3},
        {"method": "ngram"},
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, "prompt_lookup_max": 2},
    ],
)
def test_other_settings_are_refused(flag: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"ngram|n-gram"):
        Settings.of(flag)


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Answer([], [1])
    with pytest.raises(ValueError, match="max_model_len 3"):
        Answer([1, 2], [3, 4], max_model_len=3)
    whole = Answer([1, 2], [3, 4], max_k=3, max_n=3)
    for settings in (Settings(4, 1, 3), Settings(3, 1, 4), Settings(3, 0, 3)):
        with pytest.raises(ValueError, match=r"k=|beyond"):
            whole.drafts(settings)


def test_importable_with_the_standard_library_alone() -> None:
    program = f"import sys; sys.path.insert(0, {str(SRC)!r}); import samebytes.replay; print(len(sys.modules))"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, timeout=60)


def traffic(prompts: int, prompt_tokens: int, answer_tokens: int) -> list[tuple[list[int], list[int]]]:
    """Answers that quote their prompt by stretches of about twenty tokens, from a large vocabulary."""
    rng = random.Random(0)
    made = []
    for _ in range(prompts):
        prompt = [int(rng.paretovariate(0.4)) % 50_000 for _ in range(prompt_tokens)]
        answer: list[int] = []
        while len(answer) < answer_tokens:
            if rng.random() < 0.5:
                at = rng.randrange(prompt_tokens)
                answer += prompt[at : at + rng.randrange(1, 40)]
            else:
                answer += [int(rng.paretovariate(0.4)) % 50_000 for _ in range(rng.randrange(1, 20))]
        made.append((prompt, answer[:answer_tokens]))
    return made


def test_a_sweep_takes_seconds() -> None:
    """24 prompts by 200 settings in under 2 s on one core: the quickest of three, in CPU time."""
    texts = traffic(24, 1000, 512)
    assert len(GRID[::2]) == 200

    def seconds() -> float:
        start = time.process_time()
        answers = [Answer(prompt, answer) for prompt, answer in texts]
        for settings in GRID[::2]:
            for answer in answers:
                answer.replay(settings)
        return time.process_time() - start

    assert any(seconds() < 2 for _ in range(3))


def test_a_long_transcript_costs_in_proportion() -> None:
    """Ten times the tokens, about ten times the time; looping text is no exception."""

    def seconds(n: int, answer: list[int]) -> float:
        start = time.process_time()
        Answer(traffic(1, n // 2, 1)[0][0], answer).replay(ARTICLE)
        return time.process_time() - start

    short = seconds(10_000, traffic(1, 5_000, 5_000)[0][1])
    long = seconds(100_000, traffic(1, 50_000, 50_000)[0][1])
    assert long < 10 * 4 * max(short, 0.01)
    assert seconds(100_000, [1, 2, 3] * 17_000) < 5


def test_a_conversation_costs_what_its_text_costs_once() -> None:
    """100,000 tokens in 200 turns: indexed for each answer anew, it would be a hundred times as many."""
    turns = traffic(200, 250, 250)
    start = time.process_time()
    conversation = Conversation()
    answers = [Answer(prompt, answer, conversation=conversation) for prompt, answer in turns]
    assert sum(answer.replay(ARTICLE).tokens for answer in answers) == 50_000
    assert len(conversation.tokens) == 100_000
    assert time.process_time() - start < 5
