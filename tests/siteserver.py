"""A published folder as a forge serves it: below its host's root."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Below, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{BELOW}"
        finally:
            server.shutdown()
            thread.join()
