"""Synthetic runs with and without n-gram speculation whose steps take known times."""

from __future__ import annotations

import json
import random
from typing import Any

from recordfactory import TTFT, a_record, answer
from samebytes.record import Record
from samebytes.replay import ARTICLE, Answer, Settings

BASELINE_S, NONE_S, FULL_S, PART_S = 0.010, 0.030, 0.012, 0.040
"""A token of the baseline, and a speculating server's steps that draft nothing, k tokens, and fewer than k."""


def quoting(seed: int) -> tuple[list[int], list[int]]:
    """Return a prompt and an answer that quotes it by stretches."""
    rng = random.Random(seed)
    prompt = [rng.randrange(1000) for _ in range(300)]
    said: list[int] = []
    while len(said) < 120:
        at = rng.randrange(250)
        said += prompt[at : at + rng.randrange(4, 30)] + [rng.randrange(1000) for _ in range(rng.randrange(1, 12))]
    return prompt, said[:120]


def pair(changed: int | None = None, *, once: bool = False, settings: Settings = ARTICLE) -> tuple[Record, Record]:
    """Return a baseline and an n-gram run whose steps take what the constants say.

    Chunks of the prompt numbered ``changed`` were merged on the way by pairs. With ``once`` every answer quotes once,
    for two drafts' length.
    """
    plain, speculated = {}, {}
    for i in range(6):
        prompt, said = quoting(i)
        if once:
            said = [*range(2000, 2040), *prompt[50:61]]
        key = f"{('code_edit', 'rag')[i % 2]}/{i}"
        common: dict[str, Any] = {"token_ids": said, "prompt_token_ids": prompt, "prompt_tokens": len(prompt)}
        plain[key] = answer(key, rate=1 / BASELINE_S, n=len(said), **common)
        t, chunks = TTFT, []
        for number, step in enumerate(Answer(prompt, said).steps(settings)):
            cost = NONE_S if not step.drafted else FULL_S if step.drafted == settings.k else PART_S
            t += cost if number else 0
            chunks.append((t, step.tokens))
        rate = (len(said) - 1) / (t - TTFT)
        if i == changed:
            first, *rest = chunks
            pairs = [rest[at : at + 2] for at in range(0, len(rest), 2)]
            chunks = [first, *((group[-1][0], sum(n for _, n in group)) for group in pairs)]
        counters = Answer(prompt, said).replay(settings)
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
    flags = ["--speculative-config", json.dumps(settings.flag())]
    return (
        a_record("baseline", ids=list(plain), replace=plain),
        a_record("ngram", ids=list(speculated), replace=speculated, flags=flags),
    )
