"""The servers of `samebytes.live`, started as make starts them, and what a test asks of them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

START_S = 60
END_S = 60  # it ends within seconds; a loaded machine may take its time


@dataclass(frozen=True)
class Live:
    """A running server.

    Attributes
    ----------
    url : str
        Its root, without the last slash.
    first : str
        The address that it prints for the reader, token and all.
    token : str
        The token that it made up.
    process : subprocess.Popen
        The server, first of its session.
    """

    url: str
    first: str
    token: str
    process: subprocess.Popen[bytes]

    def ask(self, path: str, data: object = None, **headers: str) -> tuple[int, str]:
        """Return the status and the text of an answer; a redirection is not followed."""
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data=body, headers=headers)
        try:
            with urllib.request.build_opener(_Stay).open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def get(self, path: str) -> Any:
        """Return what the API says, asked with the token."""
        status, text = self.ask(path, Authorization=f"token {self.token}")
        assert status == 200, (path, status, text)
        return json.loads(text)

    def start_kernel(self, path: str) -> str:
        """Start the kernel of a notebook at a path in the project and return its id."""
        wanted = {"path": path, "type": "notebook", "name": Path(path).name, "kernel": {"name": "python3"}}
        status, text = self.ask("api/sessions", wanted, Authorization=f"token {self.token}")
        assert status == 201, text
        return str(json.loads(text)["kernel"]["id"])

    def run(self, kernel: str, *codes: str) -> list[dict[str, Any]]:
        """Return all that a kernel published while it ran cells, one after the other, over its websocket."""
        return asyncio.run(self._run(kernel, codes))

    async def _run(self, kernel: str, codes: tuple[str, ...]) -> list[dict[str, Any]]:
        address = f"{self.url}/api/kernels/{kernel}/channels".replace("http", "ws", 1)
        socket = await websocket_connect(HTTPRequest(address, headers={"Authorization": f"token {self.token}"}))
        published: list[dict[str, Any]] = []
        for code in codes:
            message_id = uuid.uuid4().hex
            header = {
                "msg_id": message_id,
                "msg_type": "execute_request",
                "version": "5.3",
                "username": "",
                "session": "",
            }
            request = {
                "header": header,
                "parent_header": {},
                "metadata": {},
                "content": {"code": code, "silent": False, "allow_stdin": False},
                "channel": "shell",
            }
            await socket.write_message(json.dumps(request))
            pending = {"idle", "reply"}
            while pending:
                text = await asyncio.wait_for(socket.read_message(), 60)
                assert isinstance(text, str), "the server closed the connection"
                found = json.loads(text)
                if found["parent_header"].get("msg_id") != message_id:
                    continue
                published.append(found)
                if found["msg_type"] == "execute_reply":
                    pending.discard("reply")
                if found["msg_type"] == "status" and found["content"]["execution_state"] == "idle":
                    pending.discard("idle")
        socket.close()
        while await socket.read_message() is not None:
            pass
        return published


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@contextmanager
def serving(root: Path, kind: str, folder: Path) -> Iterator[Live]:
    """Start a project's server, wait until it answers, and end it as Ctrl-C does.

    Parameters
    ----------
    root : Path
        A project with its environments.
    kind : str
        ``"lab"`` or ``"live"``.
    folder : Path
        Where its log goes.
    """
    log = folder / f"{kind}.log"
    program = [".venv/lab/bin/python", "-P", "src/samebytes/live.py"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*program, kind, "--no-browser", "--ServerApp.port=0"],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _answering(process, log)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _answering(process: subprocess.Popen[bytes], log: Path) -> Live:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        said = log.read_text(errors="replace")
        assert process.poll() is None, said
        found = re.search(r"(http://127\.0\.0\.1:\d+)(/\S+)\?token=(\w{32,})", said)
        if found:
            url, path, token = found.groups()
            live = Live(url, f"{url}{path}?token={token}", token, process)
            try:
                live.get("api/status")
            except (OSError, AssertionError):
                time.sleep(0.1)
                continue
            return live
        time.sleep(0.1)
    raise AssertionError(f"no server after {START_S} s:\n{log.read_text(errors='replace')}")
