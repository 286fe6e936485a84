"""A process tree that lives, dies and answers as vLLM's does: API server, engine core below it, worker below that.

Run as ``python standin_engine.py --port N --served-model-name NAME``. It loads nothing and answers ``/health``,
``/version``, ``/v1/models``, ``/metrics`` and chat completions (streamed, or whole with candidates), whose words are
the prompt's own and whose tokens the counters count; `standin_project` makes a vLLM installation of it. Its options
are the ways in which a real one misbehaves; further ones may stand in ``STANDIN_OPTIONS``, so that two starts of one
command line can differ, and vLLM's flags are taken as they come. Standard library only.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "0.32.0"
DRAFT = 5
EOS = 2
READY_LOG = """\
(EngineCore pid=1) INFO 11-29 20:40:10 [kv_cache_utils.py:2327] CPU KV cache size: {pool:,} tokens, \
Maximum concurrency for 4,096 tokens per request: 22.75x"""
DEATH_LOG = """\
(EngineCore pid=1) ERROR 11-29 20:40:31 [core.py:1099] EngineCore encountered a fatal error.
(EngineCore pid=1) ERROR 11-29 20:40:31 [core.py:1099] Traceback (most recent call last):
(EngineCore pid=1) ERROR 11-29 20:40:31 [core.py:1099]   File "cpu_worker.py", line 1, in execute_model
(EngineCore pid=1) ERROR 11-29 20:40:31 [core.py:1099] RuntimeError: the stand-in was told to die
(APIServer pid=1) ERROR 11-29 20:40:31 [async_llm.py:701] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--role", choices=["api", "core", "worker"], default="api")
    parser.add_argument("--pids", type=Path, help="file to which each process appends its id")
    parser.add_argument("--load-s", type=float, default=0.0, help="seconds until it listens")
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--exit-code", type=int, help="print --exit-log instead of listening, and exit")
    parser.add_argument("--exit-log", type=Path)
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--escape", action="store_true", help="the worker leaves the session")
    parser.add_argument("--wrong-name", action="store_true")
    parser.add_argument("--api-key", help="refuse requests without it")
    parser.add_argument("--speculative-config", help="draft tokens; which, is not looked at")
    parser.add_argument("--profiler-config", help="leave a trace where it says, of steps that last 1 ms")
    parser.add_argument("--no-profiler", action="store_true", help="know no such pages")
    parser.add_argument("--step-s", type=float, default=0.001, help="seconds of one decoding step")
    parser.add_argument("--refuse", help="HTTP 400 for prompts that hold this word")
    parser.add_argument("--reset-after", type=int, help="so many answers, then the counters start again at 0")
    parser.add_argument("--die-after", type=int, help="so many answers, then the engine dies in the middle of the next")
    parser.add_argument(
        "--stray", type=int, help="where an answer with candidates has another token than a streamed one"
    )
    parser.add_argument("--linger-s", type=float, default=0.0, help="how long the API server outlives the engine")
    known, _ = parser.parse_known_args([*sys.argv[1:], *shlex.split(os.environ.get("STANDIN_OPTIONS", ""))])
    return known


@dataclass(frozen=True)
class Step:
    """One decoding step of an answer: the tokens that come out of it, and how many were drafted and accepted."""

    tokens: list[str]
    drafted: int = 0
    accepted: int = 0


def steps(prompt: str, max_tokens: int, speculative: bool) -> tuple[list[Step], str]:
    """Return an answer, the same for the same prompt whatever the speculation, and why it ends."""
    words = prompt.split()
    digest = hashlib.sha256(prompt.encode()).digest()
    stops = digest[0] % 2 == 0 and max_tokens > 4
    length = max_tokens - 3 if stops else max_tokens
    tokens = [words[(digest[1] + i) % len(words)] + " " for i in range(length)]
    if stops:
        tokens[-1] = ""  # the end-of-sequence token has no text
    out = [Step(tokens[:1])]
    at = 1
    while at < length:
        drafted = DRAFT if speculative and len(out) % 3 else 0
        accepted = len(out) % (drafted + 1)
        out.append(Step(tokens[at : at + 1 + accepted], drafted, accepted))
        at += 1 + accepted
    return out, "stop" if stops else "length"


def token_id(token: str) -> int:
    return int.from_bytes(hashlib.sha256(token.encode()).digest()[:2]) + 3 if token else EOS


class Engine:
    """The counters, and what the engine has been told to do to them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.lock = threading.Lock()
        self.started = time.time()
        self.running = 0
        self.answers = 0
        self.dead = False
        self.pool = 93184
        self.zero()

    def zero(self) -> None:
        names = ("generation_tokens", "prompt_tokens", "prompt_tokens_cached", "num_preemptions", "request_success")
        if self.args.speculative_config:
            names += ("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
        self.counters = dict.fromkeys(names, 0.0)
        self.per_position = [0.0] * DRAFT

    def count(self, **rises: float) -> None:
        with self.lock:
            for name, rise in rises.items():
                self.counters[name] += rise

    def count_step(self, step: Step) -> None:
        self.count(generation_tokens=len(step.tokens))
        if step.drafted:
            self.count(
                spec_decode_num_drafts=1,
                spec_decode_num_draft_tokens=step.drafted,
                spec_decode_num_accepted_tokens=step.accepted,
            )
            with self.lock:
                for position in range(step.accepted):
                    self.per_position[position] += 1

    def page(self) -> str:
        with self.lock:
            lines = [
                "# TYPE process_start_time_seconds gauge",
                f"process_start_time_seconds {self.started}",
                "# TYPE vllm:num_requests_running gauge",
                f'vllm:num_requests_running{{engine="0"}} {self.running}',
                "# TYPE vllm:cache_config_info gauge",
                f'vllm:cache_config_info{{enable_prefix_caching="False",kv_cache_size_tokens="{self.pool}"}} 1.0',
            ]
            for name, value in self.counters.items():
                lines += [f"# TYPE vllm:{name}_total counter", f'vllm:{name}_total{{engine="0"}} {value}']
            if self.args.speculative_config:
                name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                lines.append(f"# TYPE {name} counter")
                lines += [f'{name}{{engine="0",position="{i}"}} {n}' for i, n in enumerate(self.per_position)]
        return "\n".join(lines) + "\n"

    def die(self) -> None:
        """Die as vLLM does: the core says why, the API server answers 500 and 503 until it ends too."""
        self.dead = True
        print(DEATH_LOG, flush=True)
        threading.Timer(self.args.linger_s, os._exit, [1]).start()


class Handler(BaseHTTPRequestHandler):
    engine: Engine
    model = ""

    def do_GET(self) -> None:
        pages = {
            "/health": "",
            "/version": json.dumps({"version": VERSION}),
            "/metrics": self.engine.page(),
            "/v1/models": json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]}),
        }
        if self.path == "/health" and self.engine.dead:
            self.whole(503, "")
        elif self.path.startswith("/v1/") and not self.authorised():
            self.refuse(401, "Unauthorized")
        elif self.path in pages:
            self.whole(200, pages[self.path])
        else:
            self.whole(404, "")

    def do_POST(self) -> None:
        if self.path.endswith("_profile"):
            self.profile()
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"]
        engine, args = self.engine, self.engine.args
        if not self.authorised():
            self.refuse(401, "Unauthorized")
        elif engine.dead:
            self.refuse(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.")
        elif body["model"] != self.model:
            self.refuse(404, f"The model `{body['model']}` does not exist.")
        elif args.refuse and args.refuse in prompt:
            self.refuse(400, f"this stand-in refuses prompts that hold {args.refuse!r}")
        else:
            with engine.lock:
                engine.answers += 1
                engine.running += 1
                if args.reset_after is not None and engine.answers == args.reset_after + 1:
                    engine.zero()
            try:
                self.answer(prompt, body) if body.get("stream") else self.scored(prompt, body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client has gone
            finally:
                with engine.lock:
                    engine.running -= 1

    def answer(self, prompt: str, body: dict[str, Any]) -> None:
        """Stream one answer; as in vLLM the counters move before the chunk goes out."""
        engine, args = self.engine, self.engine.args
        told, reason = steps(prompt, body["max_tokens"], bool(args.speculative_config))
        ids = body.get("return_token_ids", False)
        prompt_ids = [token_id(word) for word in prompt.split()]
        sent = 0

        def event(choices: list[dict[str, Any]], **more: Any) -> None:
            usage = {
                "prompt_tokens": len(prompt_ids),
                "total_tokens": len(prompt_ids) + sent,
                "completion_tokens": sent,
            }
            chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": self.model}
            self.wfile.write(
                b"data: %s\n\n" % json.dumps({**chunk, "choices": choices, "usage": usage, **more}).encode()
            )

        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        doomed = args.die_after is not None and engine.answers > args.die_after
        engine.count(prompt_tokens=len(prompt_ids))
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        event([role], **({"prompt_token_ids": prompt_ids} if ids else {}))
        for number, step in enumerate(told):
            time.sleep(args.step_s)
            if doomed and number == 2:
                engine.die()
                time.sleep(args.linger_s)
                return
            engine.count_step(step)
            sent += len(step.tokens)
            last = number == len(told) - 1
            choice = {
                "index": 0,
                "delta": {"content": "".join(step.tokens)},
                "finish_reason": reason if last else None,
                **({"token_ids": [token_id(token) for token in step.tokens]} if ids else {}),
            }
            if last:
                engine.count(request_success=1)
            event([choice])
        event([])
        self.wfile.write(b"data: [DONE]\n\n")

    def profile(self) -> None:
        """Start or stop the profiler; a step is 0.6 ms of work after 0.1 ms of nothing, and nothing after it."""
        config = self.engine.args.profiler_config
        if config is None or self.engine.args.no_profiler:
            self.whole(404, "")
            return
        if self.path == "/stop_profile":
            events = []
            for start in range(0, 40_000, 1000):
                mark = {"ph": "X", "cat": "user_annotation", "name": "execute_context_0(0)_generation_1(1)"}
                work = {"ph": "X", "cat": "kernel", "name": "machete::kernel"}
                events += [{**mark, "ts": start, "dur": 900}, {**work, "ts": start + 100, "dur": 600}]
            path = Path(json.loads(config)["torch_profiler_dir"], "rank0.pt.trace.json.gz")
            path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
        self.whole(200, "")

    def scored(self, prompt: str, body: dict[str, Any]) -> None:
        """Give one whole answer with the candidates of each token, some of them exact ties."""
        told, reason = steps(prompt, body["max_tokens"], bool(self.engine.args.speculative_config))
        ids = [token_id(token) for step in told for token in step.tokens]
        if self.engine.args.stray is not None and len(ids) > self.engine.args.stray:
            ids[self.engine.args.stray] += 1
        time.sleep(self.engine.args.step_s * len(ids))
        content = []
        for at, chosen in enumerate(ids):
            scores = {chosen + i: 20.0 - (at % 4) * 0.125 - i + (i > 0) for i in range(body["top_logprobs"])}
            scores[chosen] = 20.0
            top = [{"token": f"token_id:{token}", "logprob": score, "bytes": []} for token, score in scores.items()]
            content.append({**top[0], "top_logprobs": top})
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(token for step in told for token in step.tokens)},
            "finish_reason": reason,
            "logprobs": {"content": content},
            "token_ids": ids,
        }
        usage = {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": len(ids) + 1}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": self.model}
        self.whole(200, json.dumps({**head, "choices": [choice], "usage": usage}))

    def authorised(self) -> bool:
        key = self.engine.args.api_key
        return key is None or self.headers["Authorization"] == f"Bearer {key}"

    def refuse(self, status: int, message: str) -> None:
        self.whole(status, json.dumps({"error": {"message": message, "code": status}}))

    def whole(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def spawn(role: str) -> None:
    position = sys.argv.index("--role") if "--role" in sys.argv else len(sys.argv)
    subprocess.Popen(
        [sys.executable, "-I", "-S", *sys.argv[:position], "--role", role],
        start_new_session=role == "worker" and "--escape" in sys.argv,
    )


def main() -> None:
    args = options()
    if args.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.pids:
        with args.pids.open("a") as pids:
            pids.write(f"{os.getpid()}\n")
    below = {"api": "core", "core": "worker"}.get(args.role)
    if below:
        spawn(below)
    if args.role != "api":
        print(f"(EngineCore pid={os.getpid()}) {args.role} runs", flush=True)
        time.sleep(3600)
    time.sleep(args.load_s)
    if args.exit_code is not None:
        if args.exit_log:
            print(args.exit_log.read_text(encoding="utf-8"), flush=True)
        if args.exit_code < 0:
            os.kill(os.getpid(), -args.exit_code)
        sys.exit(args.exit_code)
    if args.never_ready:
        print("(EngineCore pid=1) still compiling", flush=True)
        time.sleep(3600)
    Handler.engine = Engine(args)
    Handler.model = "someone-else" if args.wrong_name else args.served_model_name
    print(READY_LOG.format(pool=Handler.engine.pool), flush=True)
    ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
