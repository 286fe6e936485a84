"""Replay of vLLM's n-gram speculation from token ids alone: what it drafts, and what of it is accepted.

At temperature 0 a verification step accepts the drafts that agree with what the model says anyway, so prompt and answer
decide everything: no model runs here. vLLM proposes after every step: the longest suffix of prompt and answer, between
``prompt_lookup_max`` and ``prompt_lookup_min`` tokens long, that occurred before; the tokens that followed it there are
the draft. Two rules exist, named after vLLM's model runners:

``v1``
    The suffix's earliest occurrence; as many drafts as follow it, at most k; no draft without an occurrence
    (``vllm/v1/spec_decode/ngram_proposer.py``; vLLM 0.20.0 on a GPU, 0.32.0 on a CPU). ``ngram_gpu`` drafts by the same
    rule (``ngram_proposer_gpu.py``, 0.32.0); what its server then schedules and counts was not examined.
``v2``
    The suffix's latest occurrence; always k drafts, filled up with the last token, on steps without an occurrence too
    (``vllm/v1/worker/gpu/spec_decode/ngram/speculator.py``; vLLM 0.32.0 on a GPU).

One request at a time, as a sequential pass has it. Standard library only, importable alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Runner = Literal["v1", "v2"]


class Settings(NamedTuple):
    """N-gram speculation as vLLM's ``--speculative-config`` has it."""

    k: int
    """``num_speculative_tokens``: tokens drafted at most."""
    min_n: int
    """``prompt_lookup_min``: shortest suffix looked up."""
    max_n: int
    """``prompt_lookup_max``: longest suffix looked up."""

    def flag(self) -> dict[str, Any]:
        """Return the value of ``--speculative-config``."""
        return {
            "method": "ngram",
            "num_speculative_tokens": self.k,
            "prompt_lookup_max": self.max_n,
            "prompt_lookup_min": self.min_n,
        }

    @classmethod
    def of(cls, flag: Mapping[str, Any]) -> Settings:
        """Return the settings of a ``--speculative-config``; what it leaves out is as vLLM fills it in.

        Raises
        ------
        ValueError
            Where they are no n-gram settings that vLLM takes.
        """
        if flag.get("method") not in ("ngram", "[ngram]"):
            raise ValueError(f"speculation method {flag.get('method')!r} is not ngram")
        shortest, longest = flag.get("prompt_lookup_min"), flag.get("prompt_lookup_max")
        settings = cls(flag.get("num_speculative_tokens", 0), shortest or longest or 5, longest or shortest or 5)
        settings.check()
        return settings

    def check(self) -> None:
        """Raise ValueError where vLLM would refuse them."""
        if self.k < 1 or not 1 <= self.min_n <= self.max_n:
            raise ValueError(f"not n-gram settings: k={self.k}, min={self.min_n}, max={self.max_n}")


ARTICLE = Settings(5, 2, 4)
"""The settings of the article that this report follows."""


class Draft(NamedTuple):
    """One draft, and what verification made of it."""

    at: int
    """Answer tokens that stood before the step."""
    drafted: int
    """Tokens drafted."""
    accepted: int
    """Tokens of it that the answer holds at that place."""
    start: int | None
    """Index, in prompt and answer together, that it was copied from; None: made of nothing but filling."""


class Step(NamedTuple):
    """One step of the engine for this request; the first is the prompt's."""

    tokens: int
    """Tokens of the answer that it added."""
    drafted: int
    """Tokens it verified beside the plain one."""


@dataclass(frozen=True)
class Replay:
    """What speculation does to one answer.

    Attributes
    ----------
    tokens : int
        Tokens of the answer.
    steps : int
        Engine steps with the prompt's.
    drafts, draft_tokens : int
        As the server counts them: steps that verified a draft, tokens drafted.
    accepted_tokens : int
        Drafted tokens that the answer holds.
    overrun : int
        What the server may have counted as accepted on top: an answer's last draft may go on beyond its end, and
        nothing tells what the model would have said there. The server's count lies between ``accepted_tokens`` and
        ``accepted_tokens + overrun``.
    accepted_per_pos : tuple of int, length k
        Drafts whose token at that position was accepted, without the overrun.
    drafts_of : tuple of int, length k + 1
        Drafts by their number of tokens (none has 0).
    drafts_from_prompt, accepted_from_prompt : int
        Drafts whose first token was copied from the prompt, and what of them was accepted; the others copied the
        model's own output (a small model that loops is not a model that quotes).
    """

    tokens: int
    steps: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    overrun: int
    accepted_per_pos: tuple[int, ...]
    drafts_of: tuple[int, ...]
    drafts_from_prompt: int
    accepted_from_prompt: int


class Conversation:
    """A text that grows by prompts and answers, and where each of its suffixes occurred before.

    It costs time in proportion to the tokens. N-grams are named by where their first occurrence ends: that of n tokens
    follows from that of n - 1 tokens and one token more, so no n-gram is ever spelled out.

    Parameters
    ----------
    runner : {"v1", "v2"}
        Whose rule; see the module.
    max_n : int
        Longest suffix that will be asked for.
    """

    def __init__(self, runner: Runner = "v1", max_n: int = 10) -> None:
        self.tokens: list[int] = []
        self.runner, self.max_n = runner, max_n
        self._end = 1  # the next context's length
        self._first: list[dict[int, int]] = [{} for _ in range(max_n)]
        self._last: list[dict[int, int]] = [{} for _ in range(max_n)]

    def extend(self, token_ids: Sequence[int], contexts_from: int) -> list[tuple[int, list[int]]]:
        """Add tokens.

        Returns
        -------
        list of (int, list of int)
            For each context of ``contexts_from`` tokens to all but the last one: its length and, for its suffixes of 1,
            2, ... tokens, where the occurrence before ends, the first or the latest, as the runner has it.
        """
        self.tokens += token_ids
        tokens, latest, first_of, last_of = self.tokens, self.runner == "v2", self._first, self._last
        found = []
        for end in range(self._end, len(tokens)):
            starts = []
            first = 0  # where the first occurrence of the suffix one token shorter ends
            for n in range(1, min(self.max_n, end) + 1):
                token = tokens[end - n]
                # The longer suffix cannot have occurred before the shorter one did: look there, then among the rest.
                if n == 1 or first < n or tokens[first - n] != token:
                    first = first_of[n - 1].setdefault(first << 32 | token, end)
                if first == end:
                    break
                if latest:
                    starts.append(last_of[n - 1].get(first, first))
                    last_of[n - 1][first] = end
                else:
                    starts.append(first)
            if end >= contexts_from:
                found.append((end, starts))
        self._end = max(self._end, len(tokens))
        return found


class Answer:
    """A prompt and its answer, indexed once for the replay of any settings.

    Parameters
    ----------
    prompt_ids, answer_ids : sequence of int
        Token ids, 0 to 2**32 - 1; the answer with its end-of-sequence token where it has one.
    runner : {"v1", "v2"}
        Whose rule; see the module.
    max_model_len : int or None
        The server's limit on prompt and answer together; None: far away.
    max_k, max_n : int
        Largest settings that will be asked for.
    conversation : Conversation or None
        What precedes ``prompt_ids``, of the same ``runner`` and ``max_n``; it grows by prompt and answer. All answers
        of a conversation together cost what its text costs once.

    Raises
    ------
    ValueError
        For an empty prompt, or more tokens than ``max_model_len``.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        *,
        runner: Runner = "v1",
        max_model_len: int | None = None,
        max_k: int = 10,
        max_n: int = 10,
        conversation: Conversation | None = None,
    ) -> None:
        before = Conversation(runner, max_n) if conversation is None else conversation
        assert (before.runner, before.max_n) == (runner, max_n)
        self.tokens = before.tokens  # goes on beyond this answer where the conversation does
        self.n_prompt, self.n_answer = len(before.tokens) + len(prompt_ids), len(answer_ids)
        self._stop = self.n_prompt + self.n_answer
        self.runner, self.max_model_len, self.max_k, self.max_n = runner, max_model_len, max_k, max_n
        if not self.n_prompt:
            raise ValueError("a prompt has at least one token")
        if max_model_len is not None and self._stop > max_model_len:
            raise ValueError(f"{self._stop} tokens do not fit into max_model_len {max_model_len}")
        contexts = before.extend([*prompt_ids, *answer_ids], self.n_prompt + 1)
        self._matches = [self._matching(end, starts) for end, starts in contexts]
        self._next: dict[int, list[int]] = {}

    def _matching(self, end: int, starts: list[int]) -> list[tuple[int, int]]:
        """Return (start, tokens of the draft that the answer holds) for the suffixes of 1, 2, ... tokens."""
        found: list[tuple[int, int]] = []
        for start in starts:
            # Longer suffixes mostly point to the same place.
            found.append(found[-1] if found and found[-1][0] == start else (start, self._agree(start, end)))
        return found

    def _agree(self, start: int, end: int) -> int:
        """Count how far the draft copied from ``start`` agrees with the answer from ``end`` on, up to ``max_k``."""
        tokens = self.tokens
        most = min(self.max_k, self._stop - end)
        copied = min(most, end - start)
        n = 0
        while n < copied and tokens[start + n] == tokens[end + n]:
            n += 1
        if self.runner == "v2" and n == end - start:
            n += self._repeats(end, n, most)
        return n

    def _repeats(self, end: int, skip: int, most: int) -> int:
        """Count how often the context's last token comes again from ``end + skip`` on, up to ``end + most``."""
        n = skip
        while n < most and self.tokens[end + n] == self.tokens[end - 1]:
            n += 1
        return n - skip

    def _propose(self, at: int, settings: Settings) -> tuple[int, int, int | None]:
        """Return drafted, accepted and start of the draft after ``at`` answer tokens; nothing drafted is 0."""
        matches = self._matches[at - 1]
        n = min(settings.max_n, len(matches))
        end = self.n_prompt + at
        if n >= settings.min_n:
            start, agreed = matches[n - 1]
            drafted = settings.k if self.runner == "v2" else min(settings.k, end - start)
            return drafted, min(agreed, drafted), start
        if self.runner == "v2":
            return settings.k, self._repeats(end, 0, min(settings.k, self.n_answer - at)), None
        return 0, 0, None

    def drafts(self, settings: Settings) -> Iterator[Draft]:
        """Yield every draft in order.

        Raises
        ------
        ValueError
            For settings that vLLM refuses, or beyond ``max_k`` or ``max_n``.
        """
        settings.check()
        if settings.k > self.max_k or settings.max_n > self.max_n:
            raise ValueError(f"{settings} is beyond max_k={self.max_k}, max_n={self.max_n}")
        return self._walk(settings)

    def _walk(self, settings: Settings) -> Iterator[Draft]:
        """Go from draft to draft; near the model's limit from step to step."""
        stop = self.n_answer
        if self.max_model_len is not None:
            # Before this neither the drafter nor the scheduler can come to the limit.
            stop = min(stop, max(1, self.max_model_len - 2 * settings.k - self.n_prompt))
        upcoming = self._upcoming(settings.min_n)
        at = 1  # the prompt's own step has no draft
        while (step := upcoming[at]) < stop:
            drafted, accepted, start = self._propose(step, settings)
            yield Draft(step, drafted, accepted, start)
            at = min(step + accepted + 1, self.n_answer)
        if stop < self.n_answer:
            yield from self._walk_near_limit(settings, max(at, stop))

    def _upcoming(self, min_n: int) -> list[int]:
        """Return, for 0 to all answer tokens, at how many of them the next draft is proposed."""
        if self.runner == "v2":
            return list(range(self.n_answer + 2))
        if min_n not in self._next:
            # Whether anything is drafted hangs on the shortest suffix alone.
            found = [self.n_answer] * (self.n_answer + 2)
            for at in range(self.n_answer - 1, 0, -1):
                found[at] = at if len(self._matches[at - 1]) >= min_n else found[at + 1]
            self._next[min_n] = found
        return self._next[min_n]

    def _walk_near_limit(self, settings: Settings, at: int) -> Iterator[Draft]:
        """Go step by step where ``max_model_len`` matters.

        Two limits of vLLM (``gpu_model_runner.py``, v1 only, and ``scheduler.py``): where a step's tokens, its drafts
        included, and k more exceed the limit, the drafter does not run after it and k zeros are scheduled in its place,
        verified and counted like any draft; and what is scheduled leaves room for one sampled token.
        """
        limit = self.max_model_len
        assert limit is not None
        length = self.n_prompt + at - 1  # tokens of the step before, its drafts included
        while at < self.n_answer:
            end = self.n_prompt + at
            if self.runner == "v2" or length + settings.k <= limit:
                drafted, accepted, start = self._propose(at, settings)
            else:
                drafted, accepted, start = settings.k, self._zeros(end, settings.k), None
            drafted = min(drafted, limit - end - 1)
            length = end + drafted
            if drafted:
                yield Draft(at, drafted, min(accepted, drafted), start)
                at += min(accepted, drafted)
            at += 1

    def _zeros(self, end: int, most: int) -> int:
        """Count the tokens of id 0 from ``end`` on, up to ``most``."""
        following = self.tokens[end : min(end + most, self._stop)]
        return next((i for i, token in enumerate(following) if token), len(following))

    def proposal(self, draft: Draft) -> list[int]:
        """Return the token ids that a draft of this answer proposed."""
        end = self.n_prompt + draft.at
        copied = [] if draft.start is None else self.tokens[draft.start : min(draft.start + draft.drafted, end)]
        filling = self.tokens[end - 1] if self.runner == "v2" else 0
        return copied + [filling] * (draft.drafted - len(copied))

    def looked_up(self, draft: Draft, settings: Settings) -> int:
        """Return how many tokens long the suffix is whose occurrence a draft follows; 0 where it follows none."""
        if draft.start is None:
            return 0
        end, n = self.n_prompt + draft.at, 0
        while n < min(settings.max_n, draft.start) and self.tokens[draft.start - n - 1] == self.tokens[end - n - 1]:
            n += 1
        return n

    def steps(self, settings: Settings) -> list[Step]:
        """Return the engine's steps for this answer, the prompt's first; raises as `drafts`.

        A server streams one chunk a step.
        """
        steps: list[Step] = []
        done = 0
        for at, drafted, accepted, _ in self.drafts(settings):
            steps += [Step(1, 0)] * (at - done)
            done = min(at + accepted + 1, self.n_answer)
            steps.append(Step(done - at, drafted))
        return steps + [Step(1, 0)] * (self.n_answer - done)

    def replay(self, settings: Settings) -> Replay:
        """Return the counters of a replay with ``settings``; raises as `drafts`."""
        drafts_of = [0] * (settings.k + 1)
        accepted_of = [0] * (settings.k + 1)
        drafts_from_prompt = accepted_from_prompt = overrun = 0
        ends_in_draft = False
        for at, drafted, accepted, start in self.drafts(settings):
            drafts_of[drafted] += 1
            accepted_of[accepted] += 1
            if start is not None and start < self.n_prompt:
                drafts_from_prompt += 1
                accepted_from_prompt += accepted
            if at + accepted == self.n_answer:
                ends_in_draft, overrun = True, drafted - accepted
        accepted_tokens = sum(n * count for n, count in enumerate(accepted_of))
        return Replay(
            tokens=self.n_answer,
            # A step adds one token more than it accepts, but for a last one whose draft holds the answer's last token.
            steps=self.n_answer - accepted_tokens + ends_in_draft,
            drafts=sum(drafts_of),
            draft_tokens=sum(n * count for n, count in enumerate(drafts_of)),
            accepted_tokens=accepted_tokens,
            overrun=overrun,
            accepted_per_pos=tuple(sum(accepted_of[i + 1 :]) for i in range(settings.k)),
            drafts_of=tuple(drafts_of),
            drafts_from_prompt=drafts_from_prompt,
            accepted_from_prompt=accepted_from_prompt,
        )
