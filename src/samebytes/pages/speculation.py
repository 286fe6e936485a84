"""How n-gram speculation works: recorded answers, replayed step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from samebytes import exhibit, prose, settings, speculation, tokens, validity
from samebytes.bookdata import Measured
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph
from samebytes.record import Record, Request
from samebytes.replay import Draft, Settings
from samebytes.speculation import Check
from samebytes.tokens import Vocabulary

STATIC_STEPS = 12
"""Steps that the page shows where no script runs."""

VISIBLE = str.maketrans({"\n": "⏎", "\t": "⇥", " ": "␣"})


@dataclass(frozen=True)
class Step:
    """One step of the engine, as it is shown.

    Attributes
    ----------
    at : int
        Answer tokens before it.
    tokens : int
        Answer tokens that it added.
    own : str or None
        The last of them, which is the model's own; None: the draft held the answer's last token.
    draft : Draft or None
        None where nothing was drafted.
    proposed : tuple of str
        The drafted tokens' texts.
    looked_up : int
        Length in tokens of the suffix that the draft follows.
    """

    at: int
    tokens: int
    own: str | None
    draft: Draft | None
    proposed: tuple[str, ...]
    looked_up: int


@dataclass(frozen=True)
class Walk:
    """A recorded answer to step through.

    Attributes
    ----------
    pieces : list of str
        What each token of prompt and answer adds to the text.
    check : Check
        Its counters by replay, and as the server counted them.
    """

    study: Measured
    record: Record
    request: Request
    settings: Settings
    pieces: list[str]
    steps: tuple[Step, ...]
    check: Check

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids or ())

    @property
    def source(self) -> str:
        """The record, as a text that says where a figure comes from."""
        return f"results/{self.study.name}/{self.record.label}.json, {self.request.id}"


def walk(study: Measured, record: Record, request: Request, check: Check, vocabulary: Vocabulary) -> Walk:
    """Return a replayable answer of a run that speculated by n-gram, step by step."""
    found = speculation.settings_of(record)
    assert found is not None
    whole = speculation.answer_of(record, request, max_k=found.k, max_n=found.max_n)
    ids = [*(request.prompt_token_ids or ()), *(request.token_ids or ())]
    drafts = {draft.at: draft for draft in whole.drafts(found)}
    steps, at = [], 0
    for each in whole.steps(found):
        draft = drafts.get(at) if each.drafted else None
        at += each.tokens
        own = vocabulary.name(ids[whole.n_prompt + at - 1]) if draft is None or each.tokens > draft.accepted else None
        proposed = tuple(vocabulary.name(i) for i in whole.proposal(draft)) if draft else ()
        n = whole.looked_up(draft, found) if draft else 0
        steps.append(Step(at - each.tokens, each.tokens, own, draft, proposed, n))
    return Walk(study, record, request, found, vocabulary.pieces(ids), tuple(steps), check)


def speculated(study: Measured) -> Record | None:
    """Return the study's first complete run, by label, that speculated by n-gram; None where there is none.

    One with a note, of random weights say, gave no answers to look at.
    """
    runs = (record for record in study.records if record.status == "complete" and record.note is None)
    return next((record for record in runs if speculation.settings_of(record) is not None), None)


def offered(study: Measured) -> list[Walk]:
    """Return the answers of a study to step through, one per workload at most.

    Of the answers of its first n-gram run that ended by themselves, without falling into a repetition, the one with the
    most tokens per step. None where the study has no such run, or the texts of its tokens are not at hand.
    """
    record, vocabulary = speculated(study), tokens.load(study.folder)
    if record is None or vocabulary is None:
        return []
    checks = {check.id: check for check in speculation.check(record)}
    best: dict[str, Request] = {}

    def rate(request: Request) -> float:
        return checks[request.id].predicted.tokens / checks[request.id].predicted.steps

    for request in record.sequential():
        if _fit(request, checks.get(request.id), vocabulary):
            before = best.get(request.workload)
            if before is None or rate(request) > rate(before):
                best[request.workload] = request
    return [walk(study, record, request, checks[request.id], vocabulary) for request in best.values()]


def _fit(request: Request, check: Check | None, vocabulary: Vocabulary) -> bool:
    return (
        check is not None
        and check.exact
        and request.finish_reason == "stop"
        and validity.find_loop(request.text) is None
        and vocabulary.covers([*(request.prompt_token_ids or ()), *(request.token_ids or ())])
    )


# -- the figure -------------------------------------------------------------------------------------------------------


def stepper(studies: Sequence[Measured]) -> Html:
    """Return the figure in which a reader steps through recorded answers."""
    walks = [each for study in studies for each in offered(study)]
    if not walks:
        return paragraph(
            "There is no answer to step through: it takes a run with n-gram speculation and the texts of its tokens, "
            "which {} writes.",
            code("python -m samebytes.tokens STUDY"),
        )
    unspelt = [code(f"python -m samebytes.tokens {study.name}") for study in studies if _unspelt(study)]
    content = json.dumps([_content(each) for each in walks], ensure_ascii=False, separators=(",", ":"))
    body = html(
        '<div class="stepper" data-stepper><div class="stepper-live" hidden></div>'
        '<div class="stepper-static">{}</div><script type="application/json">{}</script></div>',
        first_steps(walks[0]),
        Html(content.replace("<", "\\u003c")),
    )
    caption = html(
        "Recorded answers, step by step: what was looked up, where it had stood before, what was drafted from there, "
        "and what of it the model confirmed. Of each workload’s answers that ended by themselves, without falling into "
        "a repetition, the one with the most tokens per step: the best case, not the usual one."
    )
    origins = [exhibit.origin(each.study, each.record.config.name) for each in walks]
    data = [row for each in walks for row in rows(each)]
    figure = exhibit.figure("speculation-steps", body, caption, exhibit.together(origins), data=data)
    note = paragraph("Not all studies are here; what makes the others’ tokens readable: {}.", join(unspelt, "; "))
    return join([figure, note]) if unspelt else figure


def _unspelt(study: Measured) -> bool:
    """Return whether a study could be stepped through if all of its tokens' texts were at hand."""
    record, vocabulary = speculated(study), tokens.load(study.folder)
    if record is None:
        return False
    used = [i for r in record.sequential() for ids in (r.prompt_token_ids, r.token_ids) for i in ids or ()]
    return vocabulary is None or not vocabulary.covers(used)


def rows(found: Walk) -> Iterator[dict[str, object]]:
    """Yield the figure's data: a row per step of the engine."""
    for number_, step in enumerate(found.steps, 1):
        yield {
            "study": found.study.name,
            "run": found.record.label,
            "prompt": found.request.id,
            "step": number_,
            "answer_tokens_before": step.at,
            "looked_up_tokens": step.looked_up,
            "found_in": _place(found, step),
            "drafted": len(step.proposed),
            "accepted": step.draft.accepted if step.draft else 0,
            "tokens_added": step.tokens,
        }


def _place(found: Walk, step: Step) -> str | None:
    if step.draft is None or step.draft.start is None:
        return None
    return "prompt" if step.draft.start < found.n_prompt else "answer"


def _content(found: Walk) -> dict[str, Any]:
    """Return what the script needs of an answer."""
    server = found.check
    return {
        "study": found.study.title,
        "prompt": found.request.id,
        "workload": common.workload_name(found.request.workload),
        "source": f"{found.study.name}/{found.record.label}",
        "settings": found.settings._asdict(),
        "prompt_tokens": found.n_prompt,
        "pieces": found.pieces,
        "steps": [
            {
                "at": step.at,
                "tokens": step.tokens,
                "own": step.own,
                "n": step.looked_up,
                "start": step.draft.start if step.draft else None,
                "accepted": step.draft.accepted if step.draft else 0,
                "draft": step.proposed,
            }
            for step in found.steps
        ],
        "server": {
            "drafts": server.drafts,
            "draft_tokens": server.draft_tokens,
            "accepted_tokens": server.accepted_tokens,
        },
    }


# -- the figure where no script runs ----------------------------------------------------------------------------------


def first_steps(found: Walk) -> Html:
    """Return an answer's first steps as a table."""
    shown = [_row(found, i, step) for i, step in enumerate(found.steps[:STATIC_STEPS], 1)]
    said = paragraph(
        "The first {} of {} steps of {}:",
        count(len(shown), source=found.source),
        count(len(found.steps), source=found.source),
        code(found.request.id),
    )
    head = ["step", "looked up", "found in", "drafted", "the model’s own token", "tokens"]
    return join([said, html('<div class="figures">{}</div>', prose.grid(head, shown, words=(1, 2, 3, 4)))])


def _row(found: Walk, i: int, step: Step) -> list[object]:
    own = _spelt([step.own]) if step.own is not None else prose.NONE
    if step.draft is None:
        lookup: list[object] = [prose.NONE, "the prompt’s own step" if step.at == 0 else "nowhere", prose.NONE]
    else:
        end = found.n_prompt + step.at
        place = {"prompt": "the prompt", "answer": "the answer", None: "nowhere"}[_place(found, step)]
        lookup = [_spelt(found.pieces[end - step.looked_up : end]), place, _judged(step)]
    return [count(i, source=found.source), *lookup, own, count(step.tokens, source=found.source)]


def _spelt(pieces: Sequence[str]) -> Html:
    return join((_token(piece) for piece in pieces), Html(" "))


def _token(text: str, kind: str = "") -> Html:
    return html('<data class="given token {}" value="{}">{}</data>', kind, text, text.translate(VISIBLE))


def _judged(step: Step) -> Html:
    """Return a draft's tokens, each with what became of it."""
    assert step.draft is not None
    parts = []
    for i, token in enumerate(step.proposed):
        if i < step.draft.accepted:
            kind, sign = "yes", "✓"
        else:
            kind, sign = ("no", "✗") if step.own is not None else ("beyond", "…")
        parts.append(html("{}{}", _token(token, kind), sign))
    return join(parts, Html(" "))


# -- the counters -----------------------------------------------------------------------------------------------------


def totals(studies: Sequence[Measured]) -> Html:
    """Return the counters of the answers on offer: by replay, and as the server counted them."""
    walks = [each for study in studies for each in offered(study)]
    if not walks:
        return Html()
    shown, data = [], []
    for each in walks:
        source, check, here = each.source, each.check, each.check.predicted
        name = html("{} <small>{}</small>", code(each.request.id), code(f"{each.study.name}/{each.record.label}"))
        shown.append(
            [
                name,
                count(here.tokens, source=source),
                count(here.steps, source=source),
                number(here.tokens / here.steps, 2, source=source),
                *(
                    html("{} <small>{}</small>", count(ours, source=source), count(theirs, source=source))
                    for ours, theirs in (
                        (here.drafts, check.drafts),
                        (here.draft_tokens, check.draft_tokens),
                        (here.accepted_tokens, check.accepted_tokens),
                    )
                ),
                count(here.accepted_from_prompt, source=source),
            ]
        )
        data.append(_counters(each))
    both = [html("{} <small>server</small>", name) for name in ("drafts", "draft tokens", "accepted")]
    head = ["answer", "tokens", "steps", "tokens per step", *both, "from the prompt"]
    caption = (
        "The answers above to their end: counted by replay and, under it, by the server. The server may count more "
        "accepted tokens: its last draft can go on beyond the answer’s end, where nobody reads."
    )
    origins = [exhibit.origin(each.study, each.record.config.name) for each in walks]
    return exhibit.table("speculation-counters", caption, head, shown, exhibit.together(origins), data=data)


def _counters(found: Walk) -> dict[str, object]:
    check, here = found.check, found.check.predicted
    return {
        "study": found.study.name,
        "run": found.record.label,
        "prompt": found.request.id,
        "tokens": here.tokens,
        "steps": here.steps,
        "drafts": here.drafts,
        "drafts_server": check.drafts,
        "draft_tokens": here.draft_tokens,
        "draft_tokens_server": check.draft_tokens,
        "accepted_tokens": here.accepted_tokens,
        "accepted_tokens_server": check.accepted_tokens,
        "overrun_at_most": here.overrun,
        "accepted_from_prompt": here.accepted_from_prompt,
    }


def equality(studies: Sequence[Measured]) -> Html:
    """Return in how many answers of all n-gram runs the replay gives the server's own counts."""
    said = []
    for study in studies:
        runs = [r for r in study.records if r.status == "complete" and speculation.settings_of(r) is not None]
        checks = [check for record in runs for check in speculation.check(record)]
        if checks:
            source = ", ".join(f"results/{study.name}/{record.label}.json" for record in runs)
            said.append(
                html(
                    "{}: {} answers, in {}",
                    given(study.title, source=f"studies/{study.name}.yaml"),
                    of(
                        sum(check.exact and check.steps_agree is True for check in checks),
                        len(checks),
                        source=f"samebytes.replay on {source}",
                    ),
                    count(len(runs), "run" if len(runs) == 1 else "runs", source=source),
                )
            )
    return prose.bullets(said)


# -- the settings -----------------------------------------------------------------------------------------------------


def glue(name: str = "ngram") -> None:
    """Make the settings of a config available to the page's text: ``k``, ``min_n`` and ``max_n``."""
    flag = settings.config(name).flags["speculative-config"]
    assert isinstance(flag, dict)
    found = Settings.of(flag)
    for key, value in found._asdict().items():
        prose.figure(key, count(value, source=f"configs/{name}.yaml"))
