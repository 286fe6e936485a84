"""The measuring client against a server that keeps an exact schedule and says when it really sent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h11
import psutil
import pytest

from samebytes import client_process, definitions, sse, stream
from samebytes.client import Batch, Client, Endpoint, Features, RequestSpec, load
from samebytes.errors import EngineError, SamebytesError
from samebytes.stream import StreamResult, to_request

SERVER = Path(__file__).with_name("schedule_server.py")


class Schedule:
    """The server, its log, and requests for it."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}"

    def _get(self, path: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self.base_url + path) as answer:
            log: list[dict[str, Any]] = json.loads(answer.read())
        return log

    def forget(self) -> None:
        self._get("/forget")

    def log(self) -> list[dict[str, Any]]:
        return self._get("/log")

    def entry(self, result: StreamResult) -> dict[str, Any]:
        """Return what the server noted of one request."""
        (entry,) = [e for e in self.log() if e["body"]["user"] == f"{result.id}/{result.copy_index}"]
        return entry


def spec(id_: str = "p", copy: int = 0, **plan: Any) -> RequestSpec:
    message = {"role": "user", "content": json.dumps(plan)}
    return RequestSpec(id_, "w", [message], 100, copy_index=copy, extra_body={"user": f"{id_}/{copy}"})


def sends(entry: dict[str, Any], kind: str) -> list[float]:
    return [t for name, t in entry["sends"] if name == kind]


@pytest.fixture(scope="module")
def server() -> Iterator[Schedule]:
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Schedule(int(process.stdout.readline()))
        process.kill()


@pytest.fixture(scope="module")
def client(server: Schedule) -> Iterator[Client]:
    with Client(Endpoint(server.base_url, "m", "sk-secret"), timeout_s=20) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _empty_log(server: Schedule) -> None:
    server.forget()


def one(client: Client, **plan: Any) -> StreamResult:
    return client.send([spec(**plan)]).results[0]


# accuracy


def measure(client: Client, server: Schedule, streams: int) -> dict[str, float]:
    """Send simultaneous streams; return the worst errors against what the server says it did."""
    server.forget()
    plan = {"first_s": 0.05, "interval_s": 0.005, "role_s": 0.01, "tokens": [1, 3, 6, 1, 2, 1, 1, 4] * 20}
    batch = client.send([spec("p", i, **plan) for i in range(streams)], concurrency=streams)
    entries = {entry["body"]["user"]: entry for entry in server.log()}
    sent = [result.sent for result in batch.results]
    assert sorted({t for t in sent if t is not None}) == sent  # each has its own stamp, in the order of sending
    ttft, rates, delays = [], [], []
    for result in batch.results:
        assert result.status == "ok", result.error
        entry = entries[f"p/{result.copy_index}"]
        texts = sends(entry, "text")
        request = to_request(result, result.scheduled)
        assert request.ttft_s is not None
        assert request.decode_tok_s is not None
        assert request.sent_s is not None
        assert request.completion_tokens == entry["tokens"]
        ttft.append(abs(request.ttft_s - (texts[0] - entry["received"])))
        true_rate = (entry["tokens"] - 1) / (texts[-1] - texts[0])
        rates.append(abs(request.decode_tok_s / true_rate - 1))
        assert all(arrived > sent for (arrived, _), sent in zip(result.chunks, texts, strict=True))
        delays.append(request.sent_s)
    return {
        "ttft": max(ttft),
        "rate": max(rates),
        "delay": max(delays),
        "cpu_share": batch.cpu_share,
        "cpu_per_chunk": batch.cpu_s / sum(len(result.chunks) for result in batch.results),
    }


def test_a_request_is_stamped_before_the_server_can_have_it(client: Client, server: Schedule) -> None:
    # a server that the write itself wakes may take the core at once: a stamp taken afterwards is late by its turn
    results = client.send([spec("p", i, tokens=[1]) for i in range(60)]).results
    received = {entry["body"]["user"]: entry["received"] for entry in server.log()}
    assert all(result.sent < received[f"p/{result.copy_index}"] for result in results if result.sent is not None)
    assert all(result.sent for result in results)


@pytest.mark.parametrize(("streams", "ttft_limit"), [(1, 0.002), (16, 0.005)])
def test_accuracy(client: Client, server: Schedule, streams: int, ttft_limit: float) -> None:
    one(client, tokens=[1])  # the process is warm
    repeats = [measure(client, server, streams) for _ in range(7)]
    error = {name: statistics.median(repeat[name] for repeat in repeats) for name in repeats[0]}
    assert error["ttft"] <= ttft_limit
    assert error["rate"] <= 0.003
    assert 0 < error["cpu_share"] <= 0.5
    # a client that builds requests when they are due cannot send sixteen in this time even once
    assert min(repeat["delay"] for repeat in repeats) <= 0.005
    if streams > 1:  # at one stream each chunk costs a wake-up
        assert error["cpu_per_chunk"] < cost_of_parsing()  # so nothing can be parsed while the clock runs


def cost_of_parsing() -> float:
    """Return the CPU seconds that parsing one chunk takes on this machine."""
    answer = (SERVER.parent / "fixtures" / "ngram.stream.sse").read_bytes()
    begin = time.process_time()
    for _ in range(100):
        stream.read(sse.decode([(0.0, answer)]), StreamResult("p", "w"), complete=True)
    return (time.process_time() - begin) / 600


def test_lag_is_sampled_for_overdue_ticks_too() -> None:
    asyncio.run(_blocked_loop())


async def _blocked_loop() -> None:
    lags: list[float] = []
    sampler = asyncio.create_task(client_process._sample_lag(lags, time.monotonic()))
    await asyncio.sleep(0)
    time.sleep(0.1)
    await asyncio.sleep(0.03)
    sampler.cancel()
    assert len(lags) >= 11
    assert sorted(lags)[-5] >= 0.05


# what was said, and when


def test_t1_first_chunk_tokens(client: Client, server: Schedule) -> None:
    result = one(client, first_s=0.05, interval_s=0.03, tokens=[3, 3, 3, 3])
    texts = sends(server.entry(result), "text")
    assert (result.completion_tokens, result.first_chunk_tokens) == (12, 3)
    rate = definitions.decode_tok_s(12, 3, result.first_text, result.finish)
    assert rate == pytest.approx(9 / (texts[-1] - texts[0]), rel=0.05)


def test_t1_k1_unknown_without_usage_per_chunk(server: Schedule) -> None:
    with Client(Endpoint(server.base_url, "m")) as plain:
        plain.features = Features(token_ids=False, chunk_usage=False)
        result = one(plain, tokens=[3, 3, 3])
    assert (result.first_chunk_tokens, result.completion_tokens) == (None, 9)
    assert [tokens for _, tokens in result.chunks] == [None, None, None]


def test_t2_whole_answer_in_one_chunk(client: Client) -> None:
    request = to_request(one(client, tokens=[40]), 0.0)
    assert (request.status, request.completion_tokens, request.decode_tok_s) == ("ok", 40, None)


def test_t3_t4_role_chunk_first(client: Client, server: Schedule) -> None:
    result = one(client, role_s=0.02, first_s=0.1, tokens=[1, 1])
    entry = server.entry(result)
    assert result.sent is not None
    assert result.first_chunk == pytest.approx(sends(entry, "role")[0], abs=0.02)
    assert result.first_text == pytest.approx(sends(entry, "text")[0], abs=0.02)
    assert result.first_text - result.sent >= 0.09
    assert len(result.chunks) == 2


def test_t5_the_end_is_the_finish_reason(client: Client, server: Schedule) -> None:
    result = one(client, tokens=[2, 2], finish="own", interval_s=0.05, usage_s=0.2)
    assert result.finish == pytest.approx(sends(server.entry(result), "finish")[0], abs=0.02)
    assert result.completion_tokens == 5
    assert result.ended is not None
    assert result.ended - result.finish >= 0.15


def test_t6_error_event_in_a_200(client: Client) -> None:
    result = one(client, tokens=[1, 1], finish=None, fault="error_event")
    assert (result.status, result.error) == ("error", "EngineCore died")


def test_t7_socket_closes(client: Client) -> None:
    result = one(client, tokens=[1, 1], finish=None, fault="close")
    assert (result.status, result.text) == ("truncated", "the cat ")


def test_t8_failures_stay_in_their_place(client: Client) -> None:
    plans: list[dict[str, Any]] = [{"tokens": [1, 1, 2], "interval_s": 0.03}] * 24
    plans = [
        {"status": 500} if i == 5 else {"finish": None, "fault": "close"} if i == 11 else p for i, p in enumerate(plans)
    ]
    batch = client.send([spec(f"p{i}", **plan) for i, plan in enumerate(plans)], concurrency=4)
    requests = [to_request(result, 0.0) for result in batch.results]
    assert [request.id for request in requests] == [f"p{i}" for i in range(24)]
    assert [r.status for r in requests].count("ok") == 22
    assert (requests[5].status, requests[11].status) == ("error", "truncated")
    assert requests[5].error == "HTTP 500: no such luck"
    assert all((r.ttft_s is None) == (r.status != "ok") for r in requests)
    assert all((r.decode_tok_s is None) == (r.status != "ok") for r in requests)


def test_t9_makespan_spans_failures_too(client: Client) -> None:
    slow_failure = spec("bad", first_s=0.3, tokens=[1], finish=None, fault="close")
    batch = client.send([slow_failure, spec("good", tokens=[4, 4])], concurrency=2)
    bad, good = batch.results
    assert (bad.status, good.status) == ("truncated", "ok")
    assert batch.makespan_s is not None
    # the server may read the request a moment before the client's stamp that it was sent
    assert 0.29 <= batch.makespan_s < 0.5
    assert definitions.aggregate_tok_s([good.completion_tokens], batch.makespan_s) == pytest.approx(
        8 / batch.makespan_s
    )


@pytest.mark.parametrize("member", ["reasoning", "reasoning_content"])
def test_t10_reasoning(client: Client, member: str) -> None:
    result = one(client, reasoning=member, reasoned=2, interval_s=0.05, tokens=[1, 1, 1])
    assert (result.reasoning, result.text, result.completion_tokens) == ("the cat ", "sat ", 3)
    assert result.first_text is not None
    assert result.visible is not None
    assert result.visible - result.first_text == pytest.approx(0.1, abs=0.03)


def test_t11_tokens_per_chunk(client: Client) -> None:
    result = one(client, tokens=[4] * 4)
    assert result.completion_tokens == 16
    assert definitions.tokens_per_step(16, [tokens for _, tokens in result.chunks]) == 4.0


def test_t12_no_usage_no_count(client: Client) -> None:
    result = one(client, usage=False, tokens=[1, 2, 3])
    assert (result.status, result.completion_tokens) == ("ok", None)
    assert result.token_ids is not None
    assert to_request(result, 0.0).decode_tok_s is None


def test_t31_gaps_are_per_chunk(client: Client, server: Schedule) -> None:
    result = one(client, interval_s=0.04, tokens=[1, 4, 4])
    texts = sends(server.entry(result), "text")
    gaps = definitions.inter_chunk_latencies([t for t, _ in result.chunks])
    assert gaps == pytest.approx(definitions.inter_chunk_latencies(texts), abs=0.015)


def test_t32_t35_warm_up_at_full_concurrency_is_not_counted(client: Client, server: Schedule) -> None:
    warm = client.send([spec("warm", i, first_s=0.2, tokens=[2]) for i in range(16)], concurrency=16)
    assert {result.status for result in warm.results} == {"ok"}
    first_answer = min(min(sends(entry, "text")) for entry in server.log())
    assert sum(entry["received"] < first_answer for entry in server.log()) == 16  # all in flight at once

    server.forget()
    measured = client.send([spec("p", i, tokens=[1, 3, 6]) for i in range(20)], concurrency=16)
    assert sum(r.completion_tokens or 0 for r in measured.results) == sum(e["tokens"] for e in server.log()) == 200
    assert sum(r.prompt_tokens or 0 for r in measured.results) == 60
    assert [r.copy_index for r in measured.results] == list(range(20))


def test_token_ids(client: Client) -> None:
    result = one(client, tokens=[1, 2])
    assert (result.token_ids, result.prompt_token_ids) == ([100, 101, 102], [1, 9690, 198])


# bytes


TEXTS = ["naïve \u2028", "\u2029\u0085 😀", "  four spaces\r\n\r\n", "data: 0\r\n\r\n", "end "]


@pytest.mark.parametrize("split", [0, 1, 3])
def test_text_survives_cuts(client: Client, split: int) -> None:
    result = one(client, texts=TEXTS, tokens=[1] * len(TEXTS), split=split)
    assert (result.status, result.text) == ("ok", "".join(TEXTS))


@pytest.mark.parametrize(
    ("frame", "keep_open"),
    [("chunked", False), ("chunked", True), ("length", False), ("length", True), ("close", False)],
)
def test_the_end_is_seen(client: Client, frame: str, keep_open: bool) -> None:
    begin = time.monotonic()
    result = one(client, frame=frame, keep_open=keep_open, tokens=[1, 2, 3])
    together = [spec("p", i, frame=frame, keep_open=keep_open, tokens=[1, 2, 3]) for i in range(2)]
    for found in (result, *client.send(together, concurrency=2).results):
        assert (found.status, found.completion_tokens) == ("ok", 6)
    assert time.monotonic() - begin < 5


def test_hanging_up_waits_for_the_last_answers_and_not_for_the_next_request(client: Client) -> None:
    specs = [spec("p", i, tokens=[1]) for i in range(2)]
    first, _ = client.send(specs, concurrency=1).results
    for result in client.send(specs, concurrency=2).results:
        assert result.ended is not None
        assert result.finish is not None
        assert result.ended - result.finish >= client_process.QUIET_S  # nobody waits for the slot
    assert first.ended is not None
    assert first.finish is not None
    assert first.ended - first.finish < client_process.QUIET_S


def test_a_refusal_on_a_connection_left_open(client: Client) -> None:
    begin = time.monotonic()
    result = one(client, status=503, keep_open=True)
    assert (result.status, result.http_status, result.error) == ("error", 503, "HTTP 503: no such luck")
    assert time.monotonic() - begin < 5


def response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


def test_what_looks_like_the_end_is_verified() -> None:
    inside = response(b"18\r\ndata: [1,2,3,4,5,6,0\r\n\r\n")
    assert inside.endswith(b"0\r\n\r\n")
    assert not client_process.parse([(1.0, inside)], closed=False).complete
    assert client_process.parse([(1.0, inside), (2.0, b"\r\n0\r\n\r\n")], closed=False).complete


def test_body_bytes_keep_their_reads_stamp() -> None:
    raw = response(b"4\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n")
    parsed = client_process.parse([(float(i), raw[i : i + 1]) for i in range(len(raw))], closed=False)
    assert parsed.complete
    assert [(raw[int(t)], piece[0]) for t, piece in parsed.body] == [(c, c) for c in b"abcdefg"]


def test_not_http() -> None:
    parsed = client_process.parse([(1.0, b"SSH-2.0-OpenSSH_9.6\r\n")], closed=True)
    assert parsed.status is None
    assert parsed.error is not None


# the request


@pytest.mark.parametrize("name", ["OPENAI_ORG_ID", "OPENAI_PROJECT_ID"])
def test_the_request_is_openais(server: Schedule, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "somebody-elses")
    with Client(Endpoint(server.base_url + "/", "m", "sk-secret"), thinking=True) as opened:
        result = one(opened, tokens=[1])
        command_line = psutil.Process(opened._process.pid).cmdline()
        assert "sk-secret" not in repr(opened.endpoint) + " ".join(command_line)
    entry = server.entry(result)
    assert entry["path"] == "/v1/chat/completions"
    headers = entry["headers"]
    assert headers["authorization"] == "Bearer sk-secret"
    assert headers["user-agent"].startswith("OpenAI/Python")
    assert (headers["connection"], headers["accept-encoding"]) == ("close", "identity")
    assert "somebody-elses" not in headers.values()
    body = entry["body"]
    assert (body["model"], body["stream"], body["temperature"], body["seed"], body["max_tokens"]) == (
        "m",
        True,
        0,
        0,
        100,
    )
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["return_token_ids"] is True
    assert body["chat_template_kwargs"] == {"enable_thinking": True}


def test_a_large_request_is_sent_when_its_last_byte_is(client: Client, server: Schedule) -> None:
    result = one(client, tokens=[1], pad="x" * (16 << 20))
    assert result.status == "ok"
    assert result.sent is not None
    received = server.entry(result)["received"]
    assert result.sent <= received + 0.05
    assert result.sent - result.scheduled > 0.3 * (received - result.scheduled)  # the first write took far less


def test_prompts_go_out_verbatim(client: Client, server: Schedule) -> None:
    text = json.dumps({"tokens": [1], "note": "\u2028\ttab 'é' 😀"}, ensure_ascii=False)
    sent = RequestSpec("p", "w", [{"role": "user", "content": text}], 10, extra_body={"user": "p/0"})
    entry = server.entry(client.send([sent]).results[0])
    assert entry["body"]["messages"] == [{"role": "user", "content": text}]


# sending


def test_a_closed_loop(client: Client, server: Schedule) -> None:
    batch = client.send([spec("p", i, first_s=0.05, tokens=[1]) for i in range(6)], concurrency=2)
    results = batch.results
    assert results[0].scheduled == results[1].scheduled  # both were due at once
    ends = sorted(result.ended or 0.0 for result in results)
    for result, freed in zip(results[2:], ends, strict=False):
        assert result.scheduled == pytest.approx(freed, abs=0.005)
        assert result.sent is not None
        assert result.sent >= result.scheduled
    events = sorted([(e["received"], 1) for e in server.log()] + [(sends(e, "text")[0], -1) for e in server.log()])
    in_flight = peak = 0
    for _, step in events:
        in_flight += step
        peak = max(peak, in_flight)
    assert peak == 2


def test_more_requests_than_connections_kept_open(client: Client) -> None:
    count = client_process.MAX_OPEN + 40
    batch = client.send([spec("p", i, tokens=[1]) for i in range(count)], concurrency=8)
    assert [result.status for result in batch.results] == ["ok"] * count


def test_an_idle_connection_that_the_server_closed_is_opened_again(client: Client, server: Schedule) -> None:
    first, second = client.send([spec("a", drop_idle=True, first_s=0.05), spec("b", tokens=[1])]).results
    assert (first.status, second.status) == ("ok", "ok")
    assert second.sent is not None
    assert second.scheduled < second.sent
    assert second.sent == pytest.approx(server.entry(second)["received"], abs=0.02)


def test_timeout(server: Schedule) -> None:
    with Client(Endpoint(server.base_url, "m"), timeout_s=0.3) as opened:
        batch = opened.send([spec("hung", tokens=[1, 1], finish=None, fault="hang"), spec("next", tokens=[1])])
    hung, following = batch.results
    assert (hung.status, hung.text, hung.error) == ("timeout", "the cat ", "no end after 0.3 s")
    assert hung.ended is not None
    assert hung.ended - hung.scheduled == pytest.approx(0.3, abs=0.1)
    assert following.status == "ok"


def test_refused_connection() -> None:
    with Client(Endpoint("http://127.0.0.1:9", "m")) as opened:
        batch = opened.send([spec("a"), spec("b")])
        assert [r.status for r in batch.results] == ["error", "error"]
        assert "no connection to 127.0.0.1:9" in (batch.results[0].error or "")
        assert batch.makespan_s is None
        request = to_request(batch.results[0], batch.results[0].scheduled)
        assert (request.sent_s, request.ttft_s, request.completion_tokens) == (None, None, None)
        with pytest.raises(EngineError, match="no connection"):
            opened.negotiate([{"role": "user", "content": "{}"}])


# extensions


@pytest.mark.parametrize(
    ("plan", "given", "asked"),
    [
        ({}, Features(), Features()),
        ({"refuse": ["return_token_ids"]}, Features(token_ids=False), Features(token_ids=False)),
        ({"refuse": ["continuous_usage_stats"]}, Features(chunk_usage=False), Features(chunk_usage=False)),
        ({"refuse": ["chat_template_kwargs"]}, Features(template_kwargs=False), Features(template_kwargs=False)),
        (
            {"refuse": ["chat_template_kwargs", "continuous_usage_stats", "return_token_ids"]},
            Features(token_ids=False, chunk_usage=False, template_kwargs=False),
            Features(token_ids=False, chunk_usage=False, template_kwargs=False),
        ),
        ({"ids": False}, Features(token_ids=False), Features()),
        ({"usage": False}, Features(chunk_usage=False), Features()),
    ],
)
def test_negotiate(server: Schedule, plan: dict[str, Any], given: Features, asked: Features) -> None:
    with Client(Endpoint(server.base_url, "m")) as opened:
        assert opened.negotiate([{"role": "user", "content": json.dumps({"tokens": [2, 2], **plan})}]) == given
        assert opened.features == asked
        assert one(opened, tokens=[1], **plan).status == "ok"


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_negotiate_gives_up(server: Schedule, status: int) -> None:
    with (
        Client(Endpoint(server.base_url, "m")) as opened,
        pytest.raises(EngineError, match=f"HTTP {status}: no such luck"),
    ):
        opened.negotiate([{"role": "user", "content": json.dumps({"status": status})}])
    assert len(server.log()) == (4 if status == 400 else 1)


# the process


def test_load_of_several_batches() -> None:
    both = load([Batch([], 1.0, 4.0, 0.002), Batch([], 0.0, 1.0, 0.004), Batch([], 0.5, 1.0, None)])
    assert both.cpu_share == pytest.approx(0.25)
    assert both.lag_p99_s == 0.004
    assert load([]).cpu_share is None


def test_inside_a_running_event_loop(client: Client) -> None:
    async def cell() -> str:
        return one(client, tokens=[1]).status

    assert asyncio.run(cell()) == "ok"


def test_progress_at_most_once_a_second(client: Client) -> None:
    seen: list[int] = []
    client.send([spec("p", i, first_s=0.4, tokens=[1]) for i in range(4)], on_finish=seen.append)
    assert seen == [3]


def test_versions(client: Client) -> None:
    assert client.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert client.versions["openai"].count(".") == 2


def test_a_dead_measuring_process_is_reported(server: Schedule) -> None:
    with Client(Endpoint(server.base_url, "m")) as opened:
        opened._process.kill()
        with pytest.raises(SamebytesError, match="measuring client died with exit code -9"):
            opened.send([spec()])


def test_what_a_dying_measuring_process_said_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openai.py").write_text("raise ImportError('openai is broken here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(SamebytesError, match=r"(?s)exit code 1: .*openai is broken here"):
        Client(Endpoint("http://127.0.0.1:9", "m"))


KERNEL = """
import json, os, sys
from samebytes.client import Client, Endpoint, RequestSpec
with Client(Endpoint(sys.argv[1], "m")) as client:
    print(client._process.pid, flush=True)
    if sys.argv[2] == "idle":
        sys.stdin.read()
    try:
        client.send([RequestSpec("p", "w", [{"role": "user", "content": '{"fault": "hang", "finish": null}'}], 8)])
    except KeyboardInterrupt:
        print("interrupted", client._process.poll(), flush=True)
"""


@pytest.mark.parametrize("state", ["idle", "waiting"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_kernel(server: Schedule, state: str, signum: signal.Signals) -> None:
    arguments = [sys.executable, "-c", KERNEL, server.base_url, state]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as kernel:
        assert kernel.stdout is not None
        measuring = psutil.Process(int(kernel.stdout.readline()))
        if state == "waiting":
            until = time.monotonic() + 10
            while not server.log() and time.monotonic() < until:
                time.sleep(0.01)
            assert server.log()
        os.kill(kernel.pid, signum)
        gone, alive = psutil.wait_procs([measuring], timeout=5)
        assert (len(gone), alive) == (1, [])
        kernel.wait(5)
        if (state, signum) == ("waiting", signal.SIGINT):
            assert kernel.stdout.read() == "interrupted -9\n"


def test_requests_are_built_but_not_sent_by_openai() -> None:
    builder = client_process.Builder("http://127.0.0.1:9/v1", "k", "m")  # nothing listens there
    wire = builder.build(messages=[{"role": "user", "content": "é"}], max_tokens=1)
    assert (wire.host, wire.port, wire.tls) == ("127.0.0.1", 9, False)
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(wire.data)
    request = reader.next_event()
    assert isinstance(request, h11.Request)
    assert request.target == b"/v1/chat/completions"
    assert client_process.Builder("https://example.org/x/v1", "k", "m").build(messages=[]).tls


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    answer = (SERVER.parent / "fixtures" / "ngram.stream.sse").read_bytes()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with context.wrap_socket(connection, server_side=True) as secured:
            request = b""
            while not request.endswith(b"}"):
                request += secured.recv(1 << 16)
            secured.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + answer)

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with Client(Endpoint(f"https://localhost:{listener.getsockname()[1]}", "m"), timeout_s=10) as opened:
            result = opened.send([spec()]).results[0]
        thread.join(10)
    assert (result.status, result.error, result.text) == ("ok", None, "The cat sat on the mat.")
    assert result.sent is not None
