"""What a stream is taken to say: one test per trap, on events of known times and on a stream of real vLLM."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from samebytes import definitions, sse, stream

FIXTURE = Path(__file__).with_name("fixtures") / "ngram.stream.sse"


def chunk(
    delta: dict[str, Any] | None = None, *, usage: int | None = None, reason: str | None = None, **extra: Any
) -> dict[str, Any]:
    """Return a chunk of vLLM's shape; without a delta one that carries usage alone."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason, **extra}]
    body: dict[str, Any] = {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
    }
    if usage is not None:
        body["usage"] = {"prompt_tokens": 5, "total_tokens": 5 + usage, "completion_tokens": usage}
    return body


def read(*events: tuple[float, Any], complete: bool = True) -> stream.StreamResult:
    result = stream.StreamResult("p", "w", scheduled=0.0, sent=0.0)
    typed = [sse.Event(t, body if isinstance(body, str) else json.dumps(body)) for t, body in events]
    return stream.read(typed, result, complete=complete)


def rate(result: stream.StreamResult) -> float | None:
    return definitions.decode_tok_s(
        result.completion_tokens, result.first_chunk_tokens, result.first_text, result.finish
    )


def test_t1_tokens_of_the_first_chunk_are_not_decoded() -> None:
    result = read(
        (0.5, chunk({"content": "abc"}, usage=3)),
        (1.0, chunk({"content": "d"}, usage=8)),
        (1.4, chunk({"content": "e"}, usage=12, reason="stop")),
        (1.4, "[DONE]"),
    )
    assert result.first_chunk_tokens == 3
    assert rate(result) == pytest.approx(10.0)
    assert result.chunks == [(0.5, 3), (1.0, 5), (1.4, 4)]


def test_t1_without_per_chunk_usage_k1_is_unknown() -> None:
    result = read(
        (0.5, chunk({"content": "abc"})),
        (1.6, chunk({"content": "e"}, reason="stop")),
        (1.7, chunk(usage=12)),
        (1.7, "[DONE]"),
    )
    assert (result.first_chunk_tokens, result.chunk_usage) == (None, False)
    assert rate(result) == pytest.approx(10.0)
    assert result.chunks == [(0.5, None), (1.6, None)]


def test_t1_token_ids_tell_k1_where_usage_does_not() -> None:
    result = read(
        (0.1, chunk({"content": ""}, token_ids=[7])),  # half a character: held back, yet a token
        (0.5, chunk({"content": "é"}, token_ids=[8, 9])),
        (0.9, chunk({"content": "e"}, reason="stop", token_ids=[10])),
        (0.9, chunk(usage=4)),
    )
    assert result.first_chunk_tokens == 3
    assert result.first_text == 0.5
    assert result.chunks == [(0.1, 1), (0.5, 2), (0.9, 1)]
    assert result.token_ids == [7, 8, 9, 10]


def test_t2_the_whole_answer_in_one_chunk_has_no_rate() -> None:
    result = read((0.5, chunk({"content": "all"}, usage=40)), (0.6, chunk({"content": ""}, usage=40, reason="stop")))
    assert result.status == "ok"
    assert rate(result) is None
    assert stream.to_request(result, 0.0).decode_tok_s is None


def test_t3_t4_a_role_is_no_token() -> None:
    result = read(
        (0.1, chunk({"role": "assistant", "content": ""}, usage=0)),
        (0.4, chunk({"content": "Hi"}, usage=1)),
        (0.5, chunk({"content": "!"}, usage=2, reason="stop")),
    )
    assert (result.first_chunk, result.first_text) == (0.1, 0.4)
    assert result.chunks == [(0.4, 1), (0.5, 1)]
    assert result.chunk_usage


def test_t5_an_answer_ends_with_its_finish_reason() -> None:
    result = read(
        (1.0, chunk({"content": "x"}, usage=9)),
        (1.1, chunk({"content": ""}, usage=10, reason="stop")),
        (1.5, chunk(usage=10)),
        (1.6, "[DONE]"),
    )
    assert result.finish == 1.1
    assert result.completion_tokens == 10
    assert result.chunks[-1] == (1.1, 1)


def test_t6_an_error_event_after_http_200() -> None:
    result = read(
        (0.1, chunk({"content": "abc"}, usage=1)),
        (0.2, {"error": {"message": "EngineCore died", "code": 500}}),
        (0.3, "[DONE]"),
    )
    assert (result.status, result.error, result.text) == ("error", "EngineCore died", "abc")
    request = stream.to_request(result, 0.0)
    assert (request.ttft_s, request.decode_tok_s) == (None, None)
    assert request.first_text_s == 0.1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "boom"}, "boom"),
        ({"error": {"code": 500}}, '{"code": 500}'),
        ({"object": "error", "message": "old style"}, "old style"),
        ("{not json", "an event that is not JSON: {not json"),
        ([1], "an event that is not a chunk: [1]"),
    ],
)
def test_t6_shapes_of_errors(body: Any, message: str) -> None:
    result = read((0.1, chunk({"content": "a"}, reason="stop")), (0.2, body))
    assert (result.status, result.error) == ("error", message)


def test_t6_an_event_of_type_error() -> None:
    result = stream.StreamResult("p", "w")
    stream.read([sse.Event(0.1, '{"detail": "x"}', "error")], result, complete=True)
    assert (result.status, result.error) == ("error", '{"detail": "x"}')


def test_t7_no_finish_reason() -> None:
    result = read((0.1, chunk({"content": "abc"}, usage=1)), complete=False)
    assert (result.status, result.text) == ("truncated", "abc")
    assert read((0.1, chunk({"content": "abc"}, usage=1)), (0.2, "[DONE]")).status == "truncated"


def test_t7_cut_after_the_finish_reason() -> None:
    last = (0.1, chunk({"content": "abc"}, usage=1, reason="length"))
    assert read(last, complete=False).status == "truncated"
    assert read(last, (0.2, "[DONE]"), complete=False).status == "ok"
    assert read(last, complete=True).finish_reason == "length"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_t10_reasoning_counts_for_ttft(name: str) -> None:
    result = read(
        (0.3, chunk({name: "hm "}, usage=1)),
        (0.4, chunk({name: "so", "content": None}, usage=2)),
        (5.0, chunk({"content": "yes"}, usage=3, reason="stop")),
        (5.1, chunk(usage=3)),
    )
    assert (result.first_text, result.visible) == (0.3, 5.0)
    assert (result.reasoning, result.text) == ("hm so", "yes")
    assert result.completion_tokens == 3


def test_a_tool_call_counts_for_ttft() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    result = read(
        (0.3, chunk({"tool_calls": [call]}, usage=2)), (0.5, chunk({}, usage=3, reason="tool_calls")), (0.6, "[DONE]")
    )
    assert (result.first_text, result.visible, result.first_chunk_tokens) == (0.3, None, 2)
    assert result.status == "ok"


def test_t11_tokens_are_not_chunks() -> None:
    events = [(float(i), chunk({"content": "x"}, usage=4 * i, reason="stop" if i == 4 else None)) for i in range(1, 5)]
    result = read(*events, (5.0, chunk(usage=16)))
    assert result.completion_tokens == 16
    assert definitions.tokens_per_step(result.completion_tokens, [n for _, n in result.chunks]) == 4.0


def test_t12_no_usage_no_count() -> None:
    result = read((0.1, chunk({"content": "a b c"}, token_ids=[1, 2, 3])), (0.2, chunk({"content": ""}, reason="stop")))
    assert result.status == "ok"
    assert result.completion_tokens is None
    assert stream.to_request(result, 0.0).decode_tok_s is None


def test_usage_on_the_last_chunk_alone_says_nothing_of_that_chunk() -> None:
    result = read((0.1, chunk({"content": "a"})), (0.2, chunk({"content": "b"}, usage=9, reason="stop")))
    assert result.chunks == [(0.1, None), (0.2, None)]
    assert (result.completion_tokens, result.chunk_usage) == (9, False)


def test_surrogates_cut_apart_by_escapes() -> None:
    result = read(
        (0.1, '{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}'),
        (0.2, '{"choices":[{"index":0,"delta":{"content":"\\ude00 \\ud83d"},"finish_reason":"stop"}]}'),
    )
    assert result.text == "😀 \ufffd"


def test_a_stream_of_real_vllm() -> None:
    pieces = [(float(i), line + b"\n") for i, line in enumerate(FIXTURE.read_bytes().split(b"\n"))]
    result = stream.StreamResult("p", "w", scheduled=0.0, sent=0.5)
    stream.read(sse.decode(pieces), result, complete=True)
    assert result.status == "ok"
    assert result.text == "The cat sat on the mat."
    assert result.token_ids == [504, 2644, 2643, 335, 260, 1171, 30, 2]
    assert result.prompt_token_ids is not None
    assert len(result.prompt_token_ids) == result.prompt_tokens == 47
    assert result.completion_tokens == len(result.token_ids)
    assert (result.first_chunk, result.first_text, result.finish) == (1.0, 3.0, 9.0)
    assert result.chunks == [(3.0, 1), (5.0, 1), (7.0, 1), (9.0, 5)]
    assert result.first_chunk_tokens == 1
    assert result.finish_reason == "stop"
    assert result.system_fingerprint == "vllm-0.32.0-a16db7e7"

    request = stream.to_request(result, 0.5)
    assert request.ttft_s == 2.5
    assert request.decode_tok_s == pytest.approx(7 / 6, abs=1e-6)
    assert request.sha256 == hashlib.sha256(b"The cat sat on the mat.").hexdigest()
    assert (request.scheduled_s, request.sent_s, request.first_chunk_s, request.finish_s) == (-0.5, 0.0, 0.5, 8.5)
    assert (request.drafts, request.draft_tokens, request.accepted_tokens) == (1, 5, 4)
    assert request.accepted_per_pos == [1, 1, 1, 1, 0]
    counts = [tokens for _, tokens in request.chunks]
    assert definitions.overrun(request.completion_tokens, counts, request.accepted_tokens) == 0
    assert definitions.tokens_per_step(request.completion_tokens, counts) == 2.0


def test_every_cut_of_a_real_stream_gives_the_same_answer() -> None:
    whole = FIXTURE.read_bytes()
    for size in (1, 2, 5, 64):
        pieces = [(1.0, whole[i : i + size]) for i in range(0, len(whole), size)]
        result = stream.read(sse.decode(pieces), stream.StreamResult("p", "w"), complete=True)
        assert (result.text, result.completion_tokens, result.status) == ("The cat sat on the mat.", 8, "ok")
