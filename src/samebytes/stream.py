"""What one streamed chat completion said, and when: time-stamped events in, one result out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from samebytes import definitions, record
from samebytes.sse import Event

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

DONE = "[DONE]"


@dataclass
class StreamResult:
    """One request and its answer. Times are seconds of CLOCK_MONOTONIC; None: it never came.

    Attributes
    ----------
    id, workload, copy_index
        Which request this was.
    status : {"ok", "error", "truncated", "timeout"}
    error : str or None
        The server's own message where it gave one.
    http_status : int or None
        Where it is not 200.
    text, reasoning : str
        Answer text and reasoning text, kept apart; reasoning is None where the server sent none.
    token_ids, prompt_token_ids : list of int or None
    prompt_tokens, completion_tokens : int or None
        The server's usage, as it stood when the stream ended.
    first_chunk_tokens : int or None
        k1: completion tokens up to and with the first text-bearing chunk.
    chunk_usage : bool
        Whether the chunks carried their usage.
    finish_reason : str or None
    scheduled, sent : float
        When the client meant to send, and just before the last byte was handed to the socket.
    first_chunk, first_text, visible, finish : float or None
        First chunk of any kind; first with text, reasoning or a tool call; first with answer text; the one that
        carries ``finish_reason``.
    ended : float or None
        When the exchange was over, be it failed.
    chunks : list of (float, int or None)
        Arrival and completion tokens of each chunk that carries text, tokens or the finish reason.
    system_fingerprint : str or None
    server_metrics : dict or None
        vLLM's own per-request ``metrics`` object where it is switched on.
    """

    id: str
    workload: str
    copy_index: int = 0
    status: record.RequestStatus = "truncated"
    error: str | None = None
    http_status: int | None = None
    text: str = ""
    reasoning: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_chunk_tokens: int | None = None
    chunk_usage: bool = False
    finish_reason: str | None = None
    scheduled: float = 0.0
    sent: float | None = None
    first_chunk: float | None = None
    first_text: float | None = None
    visible: float | None = None
    finish: float | None = None
    ended: float | None = None
    chunks: list[tuple[float, int | None]] = field(default_factory=list)
    system_fingerprint: str | None = None
    server_metrics: dict[str, Any] | None = None


def error_message(body: Any) -> str | None:
    """Return the message of an error object of vLLM's or OpenAI's shape, or None where ``body`` is none."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if error is None and body.get("object") == "error":
        error = body
    if isinstance(error, dict):
        return str(error.get("message") or json.dumps(error, ensure_ascii=False))
    return None if error is None else str(error)


def read(events: Iterable[Event], result: StreamResult, *, complete: bool) -> StreamResult:
    """Fill a result from the events of its stream.

    Parameters
    ----------
    events : iterable of Event
        In order of arrival.
    result : StreamResult
        With its identity and its sending times; returned filled.
    complete : bool
        Whether the response ended as HTTP wants it (else the connection was cut).

    Returns
    -------
    StreamResult
        ``error`` where the stream carried an error event or no JSON; ``ok`` where it has a finish reason and was seen
        to its end; else ``truncated``.
    """
    text: list[str] = []
    reasoning: list[str] = []
    token_ids: list[int] = []
    counted: int | None = 0  # completion tokens so far; None once a chunk with text said neither usage nor token ids
    done = False
    for event, chunk in _chunks(events, result):
        if chunk is None:
            done = True
            break
        usage = _note(result, event.t, chunk)
        choices = getattr(chunk, "choices", None)
        if not choices:
            continue
        choice = choices[0]
        delta = choice.delta
        said = delta.model_extra or {}
        content = delta.content or ""
        thought = said.get("reasoning") or said.get("reasoning_content") or ""
        ids = (choice.model_extra or {}).get("token_ids") or []
        bears_text = bool(content or thought or delta.tool_calls)
        tokens, counted = _count(counted, usage, len(ids), bears_text)
        text.append(content)
        reasoning.append(thought)
        token_ids += ids
        if bears_text and result.first_text is None:
            result.first_text = event.t
            result.first_chunk_tokens = counted
            result.chunk_usage = usage is not None
        if content and result.visible is None:
            result.visible = event.t
        reason = getattr(choice, "finish_reason", None)
        if reason and result.finish is None:
            result.finish = event.t
            result.finish_reason = reason
        if bears_text or tokens or reason:
            result.chunks.append((event.t, tokens))

    result.text = _unicode("".join(text))
    result.reasoning = _unicode("".join(reasoning)) or None
    result.token_ids = token_ids or None
    if result.error is not None:
        result.status = "error"
    elif result.finish is not None and (done or complete):
        result.status = "ok"
    else:
        result.status = "truncated"
        result.error = "the stream ended without " + ("its end mark" if result.finish is not None else "finish_reason")
    return result


def _note(result: StreamResult, t: float, chunk: ChatCompletionChunk) -> int | None:
    """Keep what a chunk says beside its choices; return its usage's completion tokens where it carries them."""
    extra = chunk.model_extra or {}
    if result.first_chunk is None:
        result.first_chunk = t
    result.system_fingerprint = chunk.system_fingerprint or result.system_fingerprint
    result.prompt_token_ids = extra.get("prompt_token_ids") or result.prompt_token_ids
    result.server_metrics = extra.get("metrics") or result.server_metrics
    usage: int | None = getattr(chunk.usage, "completion_tokens", None)
    if usage is not None:
        result.completion_tokens = usage
        result.prompt_tokens = getattr(chunk.usage, "prompt_tokens", None)
    return usage


def _count(counted: int | None, usage: int | None, ids: int, bears_text: bool) -> tuple[int | None, int | None]:
    """Return the tokens of one chunk and of all so far: by its usage, else by its token ids, else unknown."""
    if usage is not None:
        return (ids or None) if counted is None else usage - counted, usage
    if ids:
        return ids, None if counted is None else counted + ids
    return None, None if bears_text else counted


def _chunks(events: Iterable[Event], result: StreamResult) -> Iterator[tuple[Event, ChatCompletionChunk | None]]:
    """Yield each event with its typed chunk (None for the end mark); stop at an error and note it."""
    # here, for it takes half a second: only the measuring process reads streams, but the command and the kernel import
    # this module too
    from openai.types.chat import ChatCompletionChunk

    for event in events:
        if event.data == DONE:
            yield event, None
            return
        try:
            body = json.loads(event.data)
        except ValueError:
            result.error = f"an event that is not JSON: {event.data[:200]}"
            return
        message = error_message(body)
        if message is None and event.type == "error":
            message = event.data
        if message is None and not isinstance(body, dict):
            message = f"an event that is not a chunk: {event.data[:200]}"
        if message is not None:
            result.error = message
            return
        # model_construct, not validation: a server's extra fields and gaps are kept, as openai's own stream does
        yield event, ChatCompletionChunk.model_construct(**body)


def _unicode(text: str) -> str:
    """Join surrogate halves that two chunks' JSON escapes left apart; a lone half, which no file holds, is replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def to_request(result: StreamResult, pass_start: float) -> record.Request:
    """Return the record of a result.

    Parameters
    ----------
    result : StreamResult
    pass_start : float
        CLOCK_MONOTONIC at the start of the pass, from which the record's times count.

    Returns
    -------
    record.Request
        TTFT and decode throughput are null unless the status is ``ok``, so that no mean takes them in. The speculation
        counters come from vLLM's per-request metrics where it sends them, else stay null.
    """

    def micro(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds, 6)

    def since(t: float | None) -> float | None:
        return None if t is None else micro(t - pass_start)

    good = result.status == "ok"
    rate = definitions.decode_tok_s(
        result.completion_tokens, result.first_chunk_tokens, result.first_text, result.finish
    )
    return record.Request(
        id=result.id,
        workload=result.workload,
        copy_index=result.copy_index,
        status=result.status,
        error=result.error,
        text=result.text,
        reasoning=result.reasoning,
        sha256=hashlib.sha256(result.text.encode()).hexdigest(),
        token_ids=result.token_ids,
        prompt_token_ids=result.prompt_token_ids,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        first_chunk_tokens=result.first_chunk_tokens,
        finish_reason=result.finish_reason,
        scheduled_s=round(result.scheduled - pass_start, 6),
        sent_s=since(result.sent),
        first_chunk_s=since(result.first_chunk),
        first_text_s=since(result.first_text),
        visible_s=since(result.visible),
        ttft_s=micro(definitions.ttft(result.sent, result.first_text)) if good else None,
        finish_s=since(result.finish),
        decode_tok_s=micro(rate) if good else None,
        chunks=[(round(t - pass_start, 6), tokens) for t, tokens in result.chunks],
        **_speculation(result.server_metrics),
    )


def _speculation(metrics: dict[str, Any] | None) -> dict[str, Any]:
    """Translate vLLM's ``metrics.speculative_decoding`` (0.29 on) into the record's names."""
    spec = (metrics or {}).get("speculative_decoding")
    if not spec:
        return {}
    histogram = spec.get("acceptance_histogram") or []  # how many drafts had exactly 0, 1, ... tokens accepted
    return {
        "drafts": spec.get("num_spec_steps"),
        "draft_tokens": spec.get("num_draft_tokens"),
        "accepted_tokens": spec.get("num_accepted_draft_tokens"),
        "accepted_per_pos": [sum(histogram[i:]) for i in range(1, len(histogram))] or None,
    }
