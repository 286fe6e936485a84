"""The probe: the prompts of a recorded run asked again, untimed, with the candidates that each token won against.

A probe starts the server of a record (the same command line and environment), asks each prompt alone as the run did,
and keeps the `TOP` candidates of every token with their scores. It explains a prompt only where it reproduces the
recorded tokens. With copies it then asks the same prompt several times at once: the same arithmetic in another shape,
which is the yardstick for what rounding alone does to a score.

Nothing here is timed, so several probes may share a machine.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from samebytes import (
    analysis,
    compare,
    engine,
    fairness,
    machine,
    margins,
    model,
    paths,
    record,
    server,
    serverlog,
    settings,
    tokens,
    workloads,
)
from samebytes.compare import Comparison
from samebytes.errors import EngineError, RecordError, UsageError, unknown
from samebytes.lock import locked
from samebytes.margins import Explanation, Moves, Trace
from samebytes.record import ConfigInfo, Launch, MachineInfo, ModelInfo, Part, Record, Sampling, Versions
from samebytes.run import Say, differences
from samebytes.settings import Plan
from samebytes.workloads import Prompt

SCHEMA = 1
TOP = 5
"""Candidates kept per token; the score of any other token is at most that of the last."""

COPIES = 6
"""Copies of a request in flight for the yardstick: as many rows as the check of a draft of five tokens has."""

FOLDER = "probes"
"""Where the probes of a study lie: ``results/STUDY/probes/LABEL.json``."""

MEMORY = "--kv-cache-memory-bytes"
"""Changes how many sequences fit and nothing that is computed, so that several probes may share one GPU."""

Mode = Literal["raw_logits", "raw_logprobs"]
MODES: tuple[Mode, ...] = ("raw_logits", "raw_logprobs")
"""What a score is: a logit as the model gave it, or (for an engine without that) the logarithm of its softmax."""


class Copy(Part):
    """One of several copies of a request that were in flight at once."""

    parts_at: int | None
    """First token that is not the one of the prompt asked alone; None: all are the same."""
    token: int | None
    """The token there; None where the copy ended before, or all are the same."""
    gaps: list[float | None]
    """Score of the alone answer's token less that of its runner-up, in this copy, at each token up to and with
    ``parts_at``; None where one of the two is no candidate here."""


class ProbePrompt(Part):
    """One prompt asked again, alone, and its copies."""

    id: str
    workload: str
    sha256: str
    finish_reason: str | None
    token_ids: list[int]
    reproduces_until: int | None
    """First token that is not the recorded one; None: all are the same."""
    top_ids: list[int]
    """`TOP` candidates per token, one token after the other: the chosen one, then the others, best first."""
    top_scores: list[float]
    copies: list[Copy] = Field(default_factory=list)


class Probe(Part):
    """A probe of one recorded run."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    status: Literal["partial", "complete", "failed"]
    reason: str | None = None
    label: str
    """The record whose tokens are reproduced, ``results/STUDY/LABEL.json``."""
    study: str
    mode: Mode
    copies: int
    config: ConfigInfo
    model: ModelInfo
    machine: MachineInfo
    versions: Versions
    sampling: Sampling
    launches: list[Launch] = Field(default_factory=list)
    prompts: list[ProbePrompt] = Field(default_factory=list)

    model_config = ConfigDict(extra="forbid", validate_assignment=True, populate_by_name=True)

    @property
    def dtype(self) -> str | None:
        """The type that the server computed in, as its command line says."""
        return fairness.options(self.config.argv).get("--dtype")

    def traces(self) -> dict[str, Trace]:
        """Return the prompts asked alone, by id."""
        return {p.id: _trace(p) for p in self.prompts}

    def yardstick(self) -> Moves | None:
        """Return how far gaps moved in the copies; None where none were asked."""
        if not self.copies:
            return None
        return margins.moves((_trace(p), c.gaps, c.parts_at is not None) for p in self.prompts for c in p.copies)


def _trace(found: ProbePrompt) -> Trace:
    pairs = list(zip(found.top_ids, found.top_scores, strict=True))
    top = tuple(tuple(pairs[i : i + TOP]) for i in range(0, len(pairs), TOP))
    return Trace(found.id, found.workload, tuple(found.token_ids), top, found.reproduces_until)


# -- on disk ----------------------------------------------------------------------------------------------------------


def dumps(found: Probe) -> str:
    """Return a probe as JSON text, each prompt on one line."""
    data = found.model_dump(mode="json", by_alias=True)
    prompts = data.pop("prompts")
    head = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1).removesuffix("\n}")
    lines = [json.dumps(p, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for p in prompts]
    return f'{head},\n "prompts": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def load(path: Path) -> Probe:
    """Read a probe.

    Raises
    ------
    RecordError
        Where the file is missing, not JSON, of another schema, or not a probe.
    """
    data = record.read_json(path, "probe")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else None
        raise RecordError(f"{path} has probe schema {schema!r}; this version of samebytes reads {SCHEMA}")
    return record.validated(path, data, Probe, "probe")


def path_of(folder: Path, label: str) -> Path:
    """Return where the probe of a study's record lies."""
    return folder / FOLDER / f"{label}.json"


def complete(folder: Path) -> dict[str, Probe]:
    """Return a study's complete probes by label."""
    found = [load(path) for path in sorted((folder / FOLDER).glob("*.json")) if not path.name.startswith(".")]
    return {probe.label: probe for probe in found if probe.status == "complete"}


@dataclass(frozen=True)
class Explained:
    """Why one recorded run's answers part from another's.

    Attributes
    ----------
    study, reference, candidate : str
        The study and the labels of its two records.
    reference_probe, candidate_probe : Probe
    comparisons : mapping of str to Comparison
        The recorded answers, by prompt.
    found : Explanation
    launches : Moves or None
        How far gaps moved in probes of the reference's repeats (other server starts of its config), without copies;
        None where none was probed.
    """

    study: str
    reference: str
    candidate: str
    reference_probe: Probe
    candidate_probe: Probe
    comparisons: Mapping[str, Comparison]
    found: Explanation
    launches: Moves | None


def explain(folder: Path, reference: str, candidate: str, probes: Mapping[str, Probe] | None = None) -> Explained:
    """Explain where a recorded run parts from another, from the probes of both.

    Parameters
    ----------
    folder : Path
        ``results/STUDY``.
    reference, candidate : str
        Labels of the two records.
    probes : mapping of str to Probe or None
        The study's complete probes, where they were read already.

    Raises
    ------
    RecordError
        Where a probe is missing or incomplete, or the two cannot be compared.
    """
    probes = complete(folder) if probes is None else probes
    for label in (reference, candidate):
        if label not in probes:
            left = load(path_of(folder, label))
            raise RecordError(f"the probe of {label} is {left.status}: {left.reason or 'it was cut short'}")
    one, two = probes[reference], probes[candidate]
    if one.mode != two.mode:
        raise RecordError(f"{reference} was probed for {one.mode}, {candidate} for {two.mode}")
    ours, theirs = record.load(folder / f"{reference}.json"), record.load(folder / f"{candidate}.json")
    compare.comparable(ours, theirs)
    asked = {r.id: r for r in theirs.sequential()}
    comparisons = {r.id: compare.compare_answers(r, asked.get(r.id)) for r in ours.sequential()}
    traces = one.traces()
    repeats = [p for p in probes.values() if p.label != reference and p.config.name == one.config.name]
    again = [(t, other[key]) for other in (p.traces() for p in repeats) for key, t in traces.items() if key in other]
    return Explained(
        study=one.study,
        reference=reference,
        candidate=candidate,
        reference_probe=one,
        candidate_probe=two,
        comparisons=comparisons,
        found=margins.explain(traces, two.traces(), comparisons, one.yardstick()),
        launches=margins.between(again) if again else None,
    )


def speller(folder: Path) -> Callable[[int], str]:
    """Return what gives a token of a study its text, ``#7`` for one that the study's list of tokens lacks."""
    return (tokens.load(folder) or tokens.Vocabulary({}, frozenset())).name


def make_missing(folder: Path, reference: str, candidate: str, say: Say = print) -> None:
    """Probe what is not yet probed of two recorded runs: the reference with copies, the candidate alone.

    Raises
    ------
    UsageError
        For a label without a record; the valid ones are listed.
    SamebytesError
        As `make`.
    """
    wanted = {reference: COPIES, candidate: 0}
    for label in wanted:
        if not (folder / f"{label}.json").is_file():
            raise unknown(f"record in results/{folder.name}", label, (r.label for r in analysis.load(folder)))
    for label in [label for label in wanted if label not in complete(folder)]:
        config = record.load(folder / f"{label}.json").config.name
        given = {"study": folder.name, "config": config, "label": label, "results_dir": str(folder.parent)}
        make(settings.plan(given), copies=wanted[label], say=say)


# -- what the server says ---------------------------------------------------------------------------------------------


def read(choice: Mapping[str, Any]) -> tuple[list[int], list[list[tuple[int, float]]]]:
    """Return the tokens of a chat completion's choice, and the candidates of each: itself, then the others, best first.

    Parameters
    ----------
    choice : mapping
        As vLLM gives it for ``return_token_ids`` and ``return_tokens_as_token_ids``.

    Raises
    ------
    EngineError
        Where the server gave no token ids, or other candidates than asked for, or those of another token.
    """
    tokens = choice.get("token_ids")
    content = (choice.get("logprobs") or {}).get("content")
    if tokens is None or content is None:
        raise EngineError("the server gave no token ids or no candidates; a probe needs both")
    if len(content) != len(tokens):
        raise EngineError(f"the server gave candidates of {len(content)} tokens for an answer of {len(tokens)}")
    rows = []
    for at, (token, entry) in enumerate(zip(tokens, content, strict=True)):
        if _token_id(entry["token"]) != token:
            raise EngineError(f"the candidates at token {at} belong to {entry['token']!r}, not to token {token}")
        row = {_token_id(one["token"]): float(one["logprob"]) for one in entry["top_logprobs"]}
        if len(row) != TOP or token not in row:
            raise EngineError(f"token {at} is not one of {TOP} candidates: the server gave {sorted(row)}")
        rows.append(sorted(row.items(), key=lambda item: (item[0] != token, -item[1], item[0])))
    return list(tokens), rows


def _token_id(text: str) -> int:
    name, _, number = text.rpartition(":")
    if name != "token_id" or not number.isdigit():
        raise EngineError(f"the server named a token {text!r}, not by its id")
    return int(number)


class Asker:
    """Asks a server as a recorded run did, and for the candidates of each token."""

    def __init__(self, base_url: str, served_model_name: str, sampling: Sampling, timeout_s: float) -> None:
        import openai  # takes a second: only where a server is asked

        self._model = served_model_name
        self._sampling = sampling
        self._failure = openai.OpenAIError
        # A server on this machine is never asked through a proxy.
        http_client = openai.DefaultHttpxClient(trust_env=False)
        self._client = openai.OpenAI(
            base_url=f"{base_url}/v1", api_key="EMPTY", max_retries=0, timeout=timeout_s, http_client=http_client
        )

    def ask(self, text: str, max_tokens: int | None = None) -> tuple[list[int], list[list[tuple[int, float]]], str]:
        """Return the tokens of the answer, their candidates, and the finish reason.

        Raises
        ------
        EngineError
            Where the server refuses or fails.
        """
        try:
            answer = self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": text}],
                max_tokens=max_tokens or self._sampling.max_tokens,
                temperature=self._sampling.temperature,
                seed=self._sampling.seed,
                logprobs=True,
                top_logprobs=TOP,
                extra_body={
                    "return_token_ids": True,
                    "return_tokens_as_token_ids": True,
                    "chat_template_kwargs": {"enable_thinking": self._sampling.thinking},
                },
            )
        except self._failure as error:
            raise EngineError(f"the request failed: {error}") from None
        choice = answer.choices[0].to_dict()
        tokens, rows = read(choice)
        return tokens, rows, str(choice.get("finish_reason"))


def mode(name: str) -> Mode:
    """Return a mode by its name.

    Raises
    ------
    UsageError
        For any other name; the valid ones are listed.
    """
    for valid in MODES:
        if name == valid:
            return valid
    raise unknown("mode", name, MODES)


# -- the probe --------------------------------------------------------------------------------------------------------


def make(
    plan: Plan,
    *,
    copies: int = 0,
    mode: Mode = "raw_logits",
    kv_cache_bytes: int | None = None,
    time_limit_s: float | None = None,
    say: Say = print,
) -> Probe:
    """Probe one recorded run and leave ``results/STUDY/probes/LABEL.json``.

    A complete probe of the same settings is returned as it is; an interrupted one goes on.

    Parameters
    ----------
    plan : Plan
        The run, as it was measured.
    copies : int
        Copies in flight for the yardstick, after each prompt was asked alone; 0: none.
    mode : {"raw_logits", "raw_logprobs"}
        What the server gives as scores.
    kv_cache_bytes : int or None
        Room for the KV cache instead of what the flags say, for probes that share a GPU; no setting of the probe.
    time_limit_s : float or None
        No prompt is begun later than this after the call; the probe is partial then.
    say : callable
        Takes one line of progress.

    Raises
    ------
    UsageError
        Where another probe is writing it, or the record comes from another machine or engine version.
    RecordError
        Where there is no complete record to reproduce, it has other settings than the plan, or a probe of other
        settings lies there.
    EngineError
        Where the engine refuses or dies; a probe with ``status: failed`` and the reason is left.
    """
    path = path_of(plan.record_path.parent, plan.label)
    with locked(path.with_name(f".{path.stem}.lock"), f"another probe is writing {path}; wait for it"):
        return _Probing(plan, path, copies, mode, kv_cache_bytes, say).make(time_limit_s)


class _Probing:
    """State of one probe; `make` is its whole life."""

    def __init__(self, plan: Plan, path: Path, copies: int, mode: Mode, kv_cache_bytes: int | None, say: Say) -> None:
        self.plan = plan
        self.path = path
        self.say = say
        self.recorded = _recorded(plan)
        self.engine = engine.resolve()
        self.port = server.free_port()
        self.served_name = f"samebytes-{secrets.token_hex(4)}"
        resolved = model.resolve(plan.model)
        extra = ["--logprobs-mode", mode, *([MEMORY, str(kv_cache_bytes)] if kv_cache_bytes else [])]
        ours = ["--host", server.HOST, "--port", str(self.port), "--served-model-name", self.served_name]
        self.argv = self.engine.argv(resolved.path_or_id, [*settings.arguments(plan.flags), *extra, *ours])
        self.probe = Probe(
            status="partial",
            label=plan.label,
            study=plan.study.name,
            mode=mode,
            copies=copies,
            config=ConfigInfo(
                name=plan.config.name,
                why=plan.config.why,
                argv=[paths.neutral(word) for word in self.argv],
                env=plan.env,
            ),
            model=self.recorded.model,
            machine=machine.info(),
            versions=machine.versions(self.engine, None),
            sampling=self.recorded.sampling,
        )

    def make(self, time_limit_s: float | None) -> Probe:
        until = None if time_limit_s is None else time.monotonic() + time_limit_s
        if self.path.exists():
            kept = load(self.path)
            changed = changes(kept, self.probe)
            if changed and kept.prompts:
                raise RecordError(f"{self.path} was made with other settings ({', '.join(changed)}); move it away")
            if not changed and kept.status == "complete":
                self.say(f"{self.path} is complete; nothing to probe")
                return kept
            if not changed:
                kept.status, kept.reason, kept.config = "partial", None, self.probe.config
                self.probe = kept
        _same_place(self.recorded, self.probe)
        try:
            with self._launch() as (asker, alive):
                self._ask_all(asker, alive, until)
        except EngineError as error:
            self.probe.status, self.probe.reason = "failed", paths.neutral(error.reason)
            self._save()
            raise
        self._save()
        return self.probe

    def _ask_all(self, asker: Asker, alive: Callable[[], None], until: float | None) -> None:
        prompts = workloads.load(paths.workloads(), self.plan.workloads, self.plan.limit)
        requests = {r.id: r for r in self.recorded.sequential()}
        done = {p.id for p in self.probe.prompts}
        try:
            asker.ask(workloads.warmup(paths.workloads())[0].text, max_tokens=8)
            for number, prompt in enumerate(prompts, 1):
                if prompt.id in done:
                    continue
                if until is not None and time.monotonic() > until:
                    self.say(f"time limit: {len(self.probe.prompts)} of {len(prompts)} prompts probed")
                    return
                found = self._ask(asker, prompt, requests[prompt.id].token_ids or [])
                self.probe.prompts.append(found)
                self._save()
                self.say(f"  [{number}/{len(prompts)}] {_line(found)}")
        except EngineError:
            alive()  # raises the root cause where the server died
            raise
        self.probe.status = "complete"

    def _ask(self, asker: Asker, prompt: Prompt, recorded: Sequence[int]) -> ProbePrompt:
        tokens, rows, finish = asker.ask(prompt.text)
        found = ProbePrompt(
            id=prompt.id,
            workload=prompt.workload,
            sha256=prompt.sha256,
            finish_reason=finish,
            token_ids=tokens,
            reproduces_until=margins.parts_at(tokens, recorded),
            top_ids=[token for row in rows for token, _ in row],
            top_scores=[score for row in rows for _, score in row],
        )
        if self.probe.copies:
            alone = _trace(found)
            with ThreadPoolExecutor(self.probe.copies) as pool:
                answers = list(pool.map(asker.ask, [prompt.text] * self.probe.copies))
            found.copies = [_copy(alone, copied, candidates) for copied, candidates, _ in answers]
        return found

    @contextlib.contextmanager
    def _launch(self) -> Iterator[tuple[Asker, Callable[[], None]]]:
        log = self.plan.record_path.parent / "logs" / f"probe-{self.plan.label}-{len(self.probe.launches)}.log"
        spec = server.ServerSpec(self.argv, self.plan.env, self.port, self.served_name, log)
        self.say(f"starting vLLM {self.engine.vllm} with config {self.plan.config.name!r} (log: {log})")
        # No check that the GPU's memory is back at the end: other probes may hold it.
        try:
            with server.serve(spec, ready_timeout_s=self.plan.study.ready_timeout_s) as running:
                facts = serverlog.facts(running.log())
                launch = Launch(
                    started_by="samebytes",
                    served_model_name=self.served_name,
                    base_url=running.base_url,
                    started=running.started or server.utc_now(),
                    started_mono=running.started_mono or time.monotonic(),
                    ready=running.ready,
                    ready_mono=running.ready_mono,
                    kv_cache_tokens=sum(facts.kv_cache_tokens) if facts.kv_cache_tokens else None,
                    attention_backend=facts.attention_backend,
                    async_scheduling=facts.async_scheduling,
                )
                self.probe.launches.append(launch)
                timeout_s = self.plan.study.request_timeout_s
                yield Asker(running.base_url, self.served_name, self.recorded.sampling, timeout_s), running.check_alive
        finally:
            if self.probe.launches and log.exists():
                last = self.probe.launches[-1]
                last.stopped, last.stopped_mono = server.utc_now(), time.monotonic()
                text = log.read_text(encoding="utf-8", errors="replace")
                last.log_excerpt = [paths.neutral(line) for line in serverlog.excerpt(text)]

    def _save(self) -> None:
        record.write_atomic(self.path, dumps(self.probe))


def _recorded(plan: Plan) -> Record:
    found = record.load(plan.record_path)
    if found.status != "complete":
        raise RecordError(f"{plan.record_path} is {found.status}: a probe reproduces a complete record")
    changed = differences(found, plan)
    if changed:
        raise RecordError(f"{plan.record_path} was measured with other settings ({'; '.join(changed)})")
    if any(request.token_ids is None for request in found.sequential()):
        raise RecordError(f"{plan.record_path} has no token ids to reproduce")
    return found


def changes(kept: Probe, new: Probe) -> list[str]:
    """Return which settings of two probes differ; how much memory the KV cache got is none."""

    def facts(probe: Probe) -> dict[str, object]:
        flags = {name: value for name, value in fairness.options(probe.config.argv).items() if name != MEMORY}
        return {
            "config": probe.config.name,
            "flags": flags,
            "environment": probe.config.env,
            "copies": probe.copies,
            "mode": probe.mode,
            "model": probe.model.model_dump(),
            "sampling": probe.sampling.model_dump(),
            "machine": _place(probe.machine),
            "vLLM version": probe.versions.vllm,
        }

    one, two = facts(kept), facts(new)
    return [name for name, value in one.items() if value != two[name]]


def _same_place(recorded: Record, here: Probe) -> None:
    there, now = _place(recorded.machine), _place(here.machine)
    if there != now:
        raise UsageError(f"{recorded.label} was measured on {there}; this machine has {now}, whose rounding is its own")
    if recorded.versions.vllm != here.versions.vllm:
        raise UsageError(
            f"{recorded.label} was measured with vLLM {recorded.versions.vllm}; here is {here.versions.vllm}"
        )


def _place(found: MachineInfo) -> str | None:
    return found.gpu or found.cpu


def _copy(alone: Trace, tokens: list[int], rows: list[list[tuple[int, float]]]) -> Copy:
    other = Trace(alone.id, alone.workload, tuple(tokens), tuple(map(tuple, rows)), None)
    at = margins.parts_at(alone.tokens, tokens)
    token = None if at is None or at >= len(tokens) else tokens[at]
    return Copy(parts_at=at, token=token, gaps=margins.gaps(alone, other))


def _line(found: ProbePrompt) -> str:
    until = found.reproduces_until
    said = "reproduced" if until is None else f"as recorded up to token {until}"
    parted = sum(copy.parts_at is not None for copy in found.copies)
    copies = f"; {parted} of {len(found.copies)} copies part" if found.copies else ""
    return f"{found.id}: {len(found.token_ids)} tokens, {said}{copies}"
