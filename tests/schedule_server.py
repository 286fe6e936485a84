"""A chat-completions server that answers on an exact schedule and says when it really did.

One process, one thread, ``select`` with microsecond time-outs. What a request is answered with stands in its user
message, a JSON object (every key is optional):

    tokens      completion tokens of each chunk that carries text; the last is the chunk with the finish reason
    texts       the text of each chunk (default: a word a token)
    reasoning   name of the delta's member that the first ``reasoned`` chunks use instead of ``content``
    reasoned    how many
    first_s, interval_s, role_s, usage_s
                delays: request to first text, chunk to chunk, request to role chunk, last chunk to usage-only chunk
    finish      "with_text", or "own": a further chunk with the end-of-sequence token alone, or null: none
    usage       false: no usage, whatever is asked
    ids         false: no token ids, whatever is asked
    role        false: no role-only chunk
    refuse      names: HTTP 400 where the body has such a member or stream option
    status      HTTP status of a plain error answer
    frame       "chunked", "length" or "close"
    split       send so many bytes at a time, each apart
    keep_open   leave the connection open after the end
    drop_idle   close every connection that has asked for nothing yet
    fault       "error_event", "close" (after the last chunk, before the end), "hang"; after ``tokens``

``GET /log`` returns what was received and sent, in CLOCK_MONOTONIC; ``GET /forget`` empties that log.
Started as a program it prints its port.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import select
import socket
import sys
import time
from typing import Any

WORDS = ("the ", "cat ", "sat ", "on ", "a ", "mat ")
EOS = 2
PROMPT_IDS = [1, 9690, 198]
DEFAULTS: dict[str, Any] = {
    "tokens": [1] * 8,
    "texts": None,
    "reasoning": None,
    "reasoned": 0,
    "first_s": 0.0,
    "interval_s": 0.0,
    "role_s": 0.0,
    "usage_s": 0.0,
    "finish": "with_text",
    "usage": True,
    "ids": True,
    "role": True,
    "refuse": [],
    "status": None,
    "frame": "chunked",
    "split": 0,
    "keep_open": False,
    "drop_idle": False,
    "fault": None,
}


def event(data: object) -> bytes:
    """Return one event as vLLM writes it: JSON with its characters bare."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


@functools.cache
def schedule(message: str, per_chunk: bool, final: bool, ids: bool) -> list[tuple[float, str, bytes]]:
    """Return (due, kind, event) of one answer, due in seconds from the request's arrival."""
    plan = {**DEFAULTS, **json.loads(message)}
    per_chunk, final, ids = per_chunk and plan["usage"], final and plan["usage"], ids and plan["ids"]
    sent = 0

    def chunk(delta: dict[str, Any], tokens: int, reason: str | None = None) -> dict[str, Any]:
        nonlocal sent
        choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        if ids and tokens:
            choice["token_ids"] = [*range(100 + sent, 100 + sent + tokens)]
        sent += tokens
        body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        if per_chunk:
            body["usage"] = usage()
        return body

    def usage() -> dict[str, int]:
        return {"prompt_tokens": 3, "total_tokens": 3 + sent, "completion_tokens": sent}

    out: list[tuple[float, str, bytes]] = []
    if plan["role"]:
        role = chunk({"role": "assistant", "content": ""}, 0)
        if ids:
            role["prompt_token_ids"] = PROMPT_IDS
        out.append((plan["role_s"], "role", event(role)))
    due = plan["first_s"]
    counts = plan["tokens"]
    for i, tokens in enumerate(counts):
        due = plan["first_s"] + i * plan["interval_s"]
        text = plan["texts"][i] if plan["texts"] else "".join(WORDS[(sent + j) % 6] for j in range(tokens))
        member = plan["reasoning"] if i < plan["reasoned"] else "content"
        last = i == len(counts) - 1 and plan["finish"] == "with_text"
        out.append((due, "text", event(chunk({member: text}, tokens, "stop" if last else None))))
    if plan["finish"] == "own":
        due += plan["interval_s"]
        out.append((due, "finish", event(chunk({"content": ""}, 1, "stop"))))
    if plan["fault"] == "error_event":
        out.append((due, "error", event({"error": {"message": "EngineCore died", "type": "x", "code": 500}})))
    if plan["fault"] in ("close", "hang"):
        return out
    due += plan["usage_s"]
    if final:
        body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
        out.append((due, "usage", event({**body, "usage": usage(), "system_fingerprint": "schedule-1"})))
    out.append((due, "done", event("[DONE]")))
    return out


class Server:
    """The select loop and its heap of what is due."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.inputs: dict[socket.socket, bytearray] = {}
        self.heap: list[tuple[float, int, socket.socket, str, bytes, dict[str, Any]]] = []
        self.asked: set[socket.socket] = set()
        self.order = itertools.count()
        self.log: list[dict[str, Any]] = []

    def run(self) -> None:
        """Serve for ever."""
        while True:
            wait = max(0.0, self.heap[0][0] - time.monotonic()) if self.heap else None
            readable, _, _ = select.select([self.listener, *self.inputs], [], [], wait)
            now = time.monotonic()
            while self.heap and self.heap[0][0] <= now:
                _, _, connection, kind, data, entry = heapq.heappop(self.heap)
                self.emit(connection, kind, data, entry)
            for connection in readable:
                if connection is self.listener:
                    accepted, _ = self.listener.accept()
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.inputs[accepted] = bytearray()
                elif connection in self.inputs:
                    self.receive(connection, now)

    def receive(self, connection: socket.socket, now: float) -> None:
        """Take what a client sent; answer a whole request."""
        try:
            data = connection.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            self.drop(connection)
            return
        got = self.inputs[connection]
        got += data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = got[:end].decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if len(got) - end - 4 < int(headers.get("content-length", 0)):
            return
        body = bytes(got[end + 4 :])
        got.clear()
        path = lines[0].split(" ")[1]
        if path in ("/log", "/forget"):
            text = json.dumps(self.log).encode()
            if path == "/forget":
                self.log = []
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            self.drop(connection)
            return
        entry = {"path": path, "headers": headers, "received": now, "sends": [], "tokens": 0}
        self.log.append(entry)
        self.answer(connection, json.loads(body), entry)

    def answer(self, connection: socket.socket, body: dict[str, Any], entry: dict[str, Any]) -> None:
        """Put an answer's pieces on the heap."""
        message = body["messages"][-1]["content"]
        options = body.get("stream_options") or {}
        plan = {**DEFAULTS, **json.loads(message)}
        entry["body"] = body
        self.asked.add(connection)
        if plan["drop_idle"]:
            for idle in self.inputs.keys() - self.asked:
                self.drop(idle)
        refused = [name for name in plan["refuse"] if name in body or name in options]
        start = entry["received"]
        if refused or plan["status"]:
            text = f"Unknown parameter: {refused[0]}" if refused else "no such luck"
            self.whole(connection, plan["status"] or 400, {"error": {"message": text}}, plan, entry)
            return
        pieces = schedule(
            message,
            bool(options.get("continuous_usage_stats")),
            bool(options.get("include_usage")),
            bool(body.get("return_token_ids")),
        )
        entry["tokens"] = sum(plan["tokens"]) + (plan["finish"] == "own")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        if plan["frame"] == "chunked":
            head += b"Transfer-Encoding: chunked\r\n"
        elif plan["frame"] == "length":
            head += b"Content-Length: %d\r\n" % sum(len(data) for _, _, data in pieces)
        out: list[tuple[float, str, bytes]] = [(0.0, "head", head + b"\r\n")]
        for due, kind, data in pieces:
            out.append((due, kind, b"%x\r\n%s\r\n" % (len(data), data) if plan["frame"] == "chunked" else data))
        if plan["fault"] == "hang":
            pass
        elif plan["fault"] == "close":
            out.append((out[-1][0], "drop", b""))
        else:
            if plan["frame"] == "chunked":
                out.append((out[-1][0], "end", b"0\r\n\r\n"))
            if not plan["keep_open"]:
                out.append((out[-1][0], "drop", b""))
        if plan["split"]:
            out = [
                (due, kind, data[i : i + plan["split"]])
                for due, kind, data in out
                for i in range(0, max(1, len(data)), plan["split"])
            ]
            out = [(due + i * 1e-4, kind, data) for i, (due, kind, data) in enumerate(out)]
        for due, kind, data in out:
            heapq.heappush(self.heap, (start + due, next(self.order), connection, kind, data, entry))

    def whole(
        self, connection: socket.socket, status: int, body: object, plan: dict[str, Any], entry: dict[str, Any]
    ) -> None:
        """Answer at once, by Content-Length."""
        text = json.dumps(body).encode()
        head = b"HTTP/1.1 %d No\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(text))
        self.emit(connection, "refusal", head + text, entry)
        if not plan["keep_open"]:
            self.drop(connection)

    def emit(self, connection: socket.socket, kind: str, data: bytes, entry: dict[str, Any]) -> None:
        """Send one piece and note when."""
        if connection not in self.inputs:
            return  # the client has gone
        if kind == "drop":
            self.drop(connection)
            return
        entry["sends"].append([kind, time.monotonic()])
        try:
            connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.drop(connection)

    def drop(self, connection: socket.socket) -> None:
        """Close a connection."""
        self.inputs.pop(connection, None)
        self.asked.discard(connection)
        connection.close()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0), backlog=512) as opened:
        print(opened.getsockname()[1])
        sys.stdout.flush()
        Server(opened).run()
