"""A process tree that lives and dies as vLLM's does: an API server, an engine core below it, a worker below that.

Run as ``python standin_engine.py --port N --served-model-name NAME``. It loads nothing and answers ``/health``,
``/v1/models`` and ``/metrics``; its options are the ways in which a real one misbehaves. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

METRICS = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1795979911.9
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 0.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0"} 7.0
"""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
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
    return parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    model = ""

    def do_GET(self) -> None:
        pages = {
            "/health": "",
            "/metrics": METRICS,
            "/v1/models": json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]}),
        }
        found = pages.get(self.path)
        body = (found or "").encode()
        self.send_response(404 if found is None else 200)
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
    Handler.model = "someone-else" if args.wrong_name else args.served_model_name
    ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
