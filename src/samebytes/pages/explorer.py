"""The divergence explorer: any two configs' answers to a prompt, side by side, their first difference marked.

The answers stand on the page as text, each once; a script lets a reader choose among them, and reads them from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from samebytes import compare, exhibit, paths, prose, tokens, workloads
from samebytes.analysis import groups
from samebytes.bookdata import Measured
from samebytes.compare import Comparison, PromptVerdict, compare_answers
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, paragraph
from samebytes.record import Record, Request
from samebytes.tokens import Vocabulary

BUDGET = 320_000
"""Bytes of answers that the page may hold; those of a study that would exceed it are loaded when it is chosen."""

NAMES = {
    "same": "same bytes",
    "differs": "differs",
    "differs (no control)": "differs, no control",
    "not attributable": "not attributable",
    "intermittent": "intermittent",
    "missing": "not answered",
}
"""What a verdict is called here."""

CONTEXT = 28
"""Characters shown in the table on each side of a first difference."""

Text = tuple[str, str]
"""An answer's text and its reasoning."""


@dataclass(frozen=True)
class Side:
    """One difference between runs of two configs on a prompt, or that there is none.

    Attributes
    ----------
    a, b : int
        The two answers, as numbers of `Prompt.answers`.
    tokens : tuple of str or None
        The two tokens at the first differing token; None where their texts are not at hand.
    """

    a: int
    b: int
    found: Comparison
    tokens: tuple[str, str] | None


@dataclass
class Prompt:
    """The answers to one prompt.

    Attributes
    ----------
    answers : list of Text
        The distinct ones, in the order of the runs.
    runs : dict of str to int
        Which run gave which; a run that gave none is missing.
    """

    id: str
    workload: str
    sha256: str
    answers: list[Text] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """What the explorer knows of a study."""

    study: Measured
    configs: Mapping[str, Sequence[Record]]
    prompts: Mapping[str, Prompt]
    vocabulary: Vocabulary | None

    @property
    def size(self) -> int:
        """Bytes of all distinct answers."""
        return sum(
            len(part.encode("utf-8", "surrogatepass"))
            for prompt in self.prompts.values()
            for answer in prompt.answers
            for part in answer
        )


def view(study: Measured) -> View:
    """Return the sequential answers of a study's complete runs."""
    configs = groups(study.records)
    prompts: dict[str, Prompt] = {}
    for record in (record for runs in configs.values() for record in runs):
        for info in record.prompts:
            prompts.setdefault(info.id, Prompt(info.id, info.workload, info.sha256))
        for request in record.sequential():
            if request.status == "ok":
                prompt, text = prompts[request.id], (request.text, request.reasoning or "")
                if text not in prompt.answers:
                    prompt.answers.append(text)
                prompt.runs[record.label] = prompt.answers.index(text)
    return View(study, configs, prompts, tokens.load(study.folder))


def sides(found: View, prompt: str, a: str, b: str) -> list[Side]:
    """Return how the runs of two configs relate on a prompt, the pair that the verdict speaks of first.

    A config against itself: its runs among each other.
    """
    one, two = found.configs[a], found.configs[b]
    pairs = list(combinations(one, 2)) if a == b else list(product(one, two))
    sides: dict[tuple[int, int, int | None], Side] = {}
    for first, second in pairs:
        asked = [_request(record, prompt) for record in (first, second)]
        comparison = compare_answers(*asked)
        if comparison.cls == "missing":
            continue
        runs = found.prompts[prompt].runs
        key = runs[first.label], runs[second.label], comparison.token_index
        sides.setdefault(key, Side(key[0], key[1], comparison, _tokens(found, asked, comparison)))
    return sorted(sides.values(), key=lambda side: side.found.same_bytes)


def _request(record: Record, prompt: str) -> Request | None:
    return next((r for r in record.sequential() if r.id == prompt), None)


def _tokens(found: View, asked: Sequence[Request | None], comparison: Comparison) -> tuple[str, str] | None:
    at = comparison.token_index
    if at is None or found.vocabulary is None:
        return None
    ids = [(request.token_ids or [])[at : at + 1] for request in asked if request is not None]
    one, two = (found.vocabulary.name(each[0]) if each else "" for each in ids)
    return one, two


# -- the figure -------------------------------------------------------------------------------------------------------


def explorer(studies: Sequence[Measured]) -> Html:
    """Return the figure in which a reader compares the answers of any two configs.

    A study whose records carry a note, of random weights say, has no answers that mean anything and is left out.
    """
    views = [view(study) for study in studies if study.note is None]
    views = [found for found in views if any(prompt.answers for prompt in found.prompts.values())]
    if not views:
        return paragraph("There are no answers to compare.")
    here: list[View] = []
    for found in views:
        if found.size + sum(each.size for each in here) <= BUDGET:
            here.append(found)
    index = [_index(found) | ({} if found in here else {"data": f"../exhibits/{_file(found)}.json"}) for found in views]
    content = json.dumps(index, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    body = html(
        '<div class="explorer" data-explorer><div class="explorer-live" hidden></div>'
        '<div class="explorer-static">{}{}</div><script type="application/json">{}</script></div>',
        _prompts(views),
        join(_study(found, found in here) for found in views),
        Html(content),
    )
    caption = (
        "Any config’s answers beside a reference’s: the prompt, both texts, and their first difference. Requests sent "
        "alone; a config against itself shows its own repeats."
    )
    origin = exhibit.together(exhibit.origin(found.study) for found in views)
    figure = exhibit.figure("answers", body, caption, origin, data=[row for found in views for row in rows(found)])
    return join([figure, *(_elsewhere(found) for found in views if found not in here)])


def _file(found: View) -> str:
    return f"answers-{found.study.name}"


def _elsewhere(found: View) -> Html:
    """Return the exhibit whose data are a study's answers, which are too many for the page."""
    said = paragraph("The answers of {} are loaded when they are chosen.", code(found.study.name))
    texts = [
        {"study": found.study.name, "prompt": prompt.id, "answer": number, "text": text, "reasoning": reasoning}
        for prompt in found.prompts.values()
        for number, (text, reasoning) in enumerate(prompt.answers)
    ]
    return exhibit.figure(_file(found), said, "Too large for this page.", exhibit.origin(found.study), data=texts)


def _verdicts(found: View) -> Iterator[tuple[str, str, dict[str, PromptVerdict]]]:
    """Yield reference, config and verdicts by prompt; a config with repeats is its own reference, without verdicts."""
    for pair in found.study.summary.pairs:
        if pair.refused is None:
            yield pair.reference, pair.candidate, {verdict.id: verdict for verdict in pair.verdicts}
    for name, runs in found.configs.items():
        if len(runs) > 1:
            yield name, name, {}


def _verdict(known: PromptVerdict | None, relations: Sequence[Side]) -> str:
    """Return what a pair of configs is called on a prompt."""
    first = relations[0].found if relations else None
    if known is not None and known.verdict not in ("same", "differs"):
        return NAMES[known.verdict]
    if first is None:
        return NAMES["missing"]
    return "same bytes" if first.cls == "same" else "differs in length" if first.cls == "length" else first.cls


def _index(found: View) -> dict[str, Any]:
    """Return what the script needs beside the texts."""
    return {
        "name": found.study.name,
        "title": found.study.title,
        "configs": {name: [record.label for record in runs] for name, runs in found.configs.items()},
        "prompts": [
            {
                "id": prompt.id,
                "workload": prompt.workload,
                "group": common.workload_name(prompt.workload),
                "sha256": prompt.sha256,
                "runs": prompt.runs,
            }
            for prompt in found.prompts.values()
        ],
        "pairs": [
            {
                "reference": reference,
                "config": config,
                "prompts": {
                    key: _relation(verdicts.get(key), sides(found, key, reference, config)) for key in found.prompts
                },
            }
            for reference, config, verdicts in _verdicts(found)
        ],
    }


def _relation(known: PromptVerdict | None, relations: Sequence[Side]) -> dict[str, Any]:
    found = []
    for side in relations:
        first = side.found
        facts = {
            "part": first.part,
            "char": first.char_index,
            "byte": first.byte_offset,
            "token": first.token_index,
            "tokens": side.tokens,
        }
        found.append({"a": side.a, "b": side.b} | {name: fact for name, fact in facts.items() if fact is not None})
    return {"verdict": _verdict(known, relations), "sides": found}


def rows(found: View) -> Iterator[dict[str, object]]:
    """Yield the figure's data: a row per reference, config and prompt."""
    for reference, config, verdicts in _verdicts(found):
        for key, prompt in found.prompts.items():
            relations = sides(found, key, reference, config)
            first = relations[0].found if relations else None
            yield {
                "study": found.study.name,
                "reference": reference,
                "config": config,
                "workload": prompt.workload,
                "prompt": key,
                "verdict": _verdict(verdicts.get(key), relations),
                "char_index": first.char_index if first else None,
                "byte_offset": first.byte_offset if first else None,
                "token_index": first.token_index if first else None,
                "context_reference": first.context_a if first else None,
                "context_config": first.context_b if first else None,
            }


# -- the figure where no script runs, and the script's source of texts ------------------------------------------------


def _preformatted(text: str, at: int | None = None, **attributes: object) -> Html:
    """Return a text as it is, with the first difference marked.

    A parser takes a line break right after the tag away and makes one of a carriage return; a lone surrogate is no
    text that can be written.
    """
    text = text.encode("utf-8", "replace").decode()
    marked: object = text
    if at is not None:
        marked = html("{}<mark>{}</mark>{}", text[:at], text[at : at + 1] or "∎", text[at + 1 :])
    named = join(html(' data-{}="{}"', name, value) for name, value in attributes.items())
    return Html(html('<pre tabindex="0"{}>\n{}</pre>', named, marked).replace("\r", "&#13;"))


def _prompts(views: Sequence[View]) -> Html:
    """Return the prompts' texts, those at hand of which the runs sent the very bytes."""
    sent = {prompt.sha256 for found in views for prompt in found.prompts.values()}
    items = [
        html("<details><summary>{}</summary>{}</details>", code(each.id), _preformatted(each.text, sha256=each.sha256))
        for each in workloads.load(paths.workloads())
        if each.sha256 in sent
    ]
    return html("<details><summary>The prompts</summary>{}</details>", join(items))


def _study(found: View, whole: bool) -> Html:
    """Return a study's divergences from its first reference as a table and, where ``whole``, every distinct answer."""
    title = given(found.study.title, source=f"studies/{found.study.name}.yaml")
    prompts = join(_answers(found, prompt) for prompt in found.prompts.values() if whole)
    return html(
        '<section data-study="{}"><details><summary>{}</summary>{}{}</details></section>',
        found.study.name,
        title,
        _divergences(found),
        prompts,
    )


def _divergences(found: View) -> Html:
    shown = []
    references = found.study.summary.references[:1]
    for reference, config, verdicts in _verdicts(found):
        if reference not in references:
            continue
        for key in found.prompts:
            relations = sides(found, key, reference, config)
            if relations and not relations[0].found.same_bytes:
                source = f"{found.study.name}: {config} against {reference}"
                shown.append(
                    _divergence(key, config, _verdict(verdicts.get(key), relations), relations[0].found, source)
                )
    if not shown:
        return paragraph("No answer differs from the reference’s.")
    head = ["prompt", "config", "verdict", "character", "byte", "token", "the reference says", "the config says"]
    return html('<div class="figures">{}</div>', prose.grid(head, shown, words=(1, 2, 6, 7)))


def _divergence(key: str, config: str, verdict: str, first: Comparison, source: str) -> list[object]:
    middle = min(first.char_index or 0, compare.CONTEXT)  # contexts start at most so far before the difference
    near = slice(max(0, middle - CONTEXT), middle + CONTEXT)
    return [
        code(key),
        code(config),
        verdict,
        count(first.char_index, source=source),
        count(first.byte_offset, source=source),
        count(first.token_index, source=source, missing="token ids were not recorded"),
        *(given((context or "")[near], source=source) for context in (first.context_a, first.context_b)),
    ]


def _answers(found: View, prompt: Prompt) -> Html:
    """Return the distinct answers to a prompt, each with the runs that gave it and where it parts from the first."""
    items = []
    for number, (text, reasoning) in enumerate(prompt.answers):
        labels = [label for label, answer in prompt.runs.items() if answer == number]
        first_text, first_reasoning = prompt.answers[0]
        keys = {"study": found.study.name, "prompt": prompt.id, "answer": number}
        parts = [_preformatted(text, compare.divergence(first_text, text), **keys, part="text")]
        if any(thoughts for _, thoughts in prompt.answers):
            at = compare.divergence(first_reasoning, reasoning)
            parts.insert(0, html("<p>Reasoning:</p>{}", _preformatted(reasoning, at, **keys, part="reasoning")))
        items.append(html("<p>{}</p>{}", join(map(code, labels), ", "), join(parts)))
    answers = count(len(prompt.answers), source=f"distinct answers to {prompt.id} in results/{found.study.name}")
    return html(
        "<details><summary>{}: {}</summary>{}</details>",
        code(prompt.id),
        html("{} {}", answers, "answer" if len(prompt.answers) == 1 else "answers"),
        join(items),
    )
