"""Servers for tests: a published folder as a forge serves it, below its host's root, and pages that a test makes up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BELOW = "some/where"
"""Where below its host's root the site lies."""


class _Below(SimpleHTTPRequestHandler):
    """Nothing is found but below `BELOW`; no line is written per request."""

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix(f"/{BELOW}") if path.startswith(f"/{BELOW}/") else "/nothing")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; yield its address, without the last slash."""
    with _started(partial(_Below, directory=str(folder))) as address:
        yield f"{address}/{BELOW}"


@contextmanager
def answering(answer: Callable[[str, Mapping[str, str]], tuple[int, str]]) -> Iterator[str]:
    """Answer each request with the status and body for its path and headers; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path, self.headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with _started(Handler) as address:
        yield address


@contextmanager
def _started(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
