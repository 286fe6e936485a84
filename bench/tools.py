"""Whole benchmark tools, each in an environment of its own: GuideLLM and AIPerf.

They are programs, so one of their runs is one pass: as many requests as streams, all at once, or at the constant rate
that spreads them over the same time as the other clients' and without a limit on how many are in flight. They start
for ten seconds and more, in several processes on all cores: what they cost a chunk cannot be told apart and is not
given.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from samebytes import model
from samebytes.errors import SamebytesError
from samebytes.stopwatch import Cell

TIMEOUT_S = 180
REPO = "samebytes/embedded"


class Broken(Exception):
    """A tool that cannot run here, and why."""


def guidellm(program: Path, port: int, cell: Cell, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return GuideLLM's command line and environment."""
    profile = f"kind=concurrent,streams={cell.streams}"
    if cell.stagger_s:
        profile = f"kind=constant,rate={cell.streams / cell.stagger_s}"
    options = [
        "--backend",
        f"kind=openai_http,target=http://127.0.0.1:{port},model=m",
        "--profile",
        profile,
        "--constraint",
        f"kind=max_requests,count={cell.streams}",
        "--data",
        f"kind=json_file,path={folder / 'prompts.jsonl'}",
        "--output",
        f"kind=json,path={folder / 'out.json'}",
    ]
    return [str(program), "run", *options, "--disable-console-interactive"], {"HF_HUB_OFFLINE": "1"}


def read_guidellm(folder: Path) -> list[dict[str, float]]:
    """Return what GuideLLM says of each stream."""
    requests = json.loads((folder / "out.json").read_text())["benchmarks"][0]["requests"]["successful"]
    return [
        {"ttft_s": r["time_to_first_token_ms"] / 1e3, "decode_tok_s": 1e3 / r["inter_token_latency_ms"]}
        for r in requests
    ]


def aiperf(program: Path, port: int, cell: Cell, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return AIPerf's command line and environment."""
    load = {"--concurrency": str(cell.streams)}
    if cell.stagger_s:
        load = {"--request-rate": str(cell.streams / cell.stagger_s), "--arrival-pattern": "constant"}
    options = {
        "--model": "m",
        "--url": f"http://127.0.0.1:{port}",
        "--endpoint-type": "chat",
        **load,
        "--request-count": str(cell.streams),
        "--input-file": str(folder / "prompts.jsonl"),
        "--custom-dataset-type": "single_turn",
        "--tokenizer": REPO,
        "--ui": "none",
        "--export-level": "records",
        "--output-artifact-dir": str(folder / "out"),
    }
    words = [word for option in options.items() for word in option]
    command = [str(program), "profile", "--streaming", "--use-server-token-count", *words]
    return command, {"HF_HUB_OFFLINE": "1", "HF_HOME": str(hub(folder))}


def read_aiperf(folder: Path) -> list[dict[str, float]]:
    """Return what AIPerf says of each stream."""
    lines = (folder / "out" / "profile_export.jsonl").read_text().splitlines()
    metrics = [json.loads(line)["metrics"] for line in lines]
    return [
        {"ttft_s": m["time_to_first_token"]["value"] / 1e3, "decode_tok_s": 1e3 / m["inter_token_latency"]["value"]}
        for m in metrics
    ]


def hub(folder: Path) -> Path:
    """Return a Hugging Face cache with the embedded model's tokenizer: AIPerf takes none from a plain folder."""
    repo = folder / "hub" / ("models--" + REPO.replace("/", "--"))
    commit = "0" * 40
    snapshot = repo / "snapshots" / commit
    if not snapshot.exists():
        snapshot.mkdir(parents=True)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(commit)
        try:
            for path in model.embedded().glob("*.json"):
                (snapshot / path.name).symlink_to(path)
        except SamebytesError as error:
            raise Broken(f"needs the embedded model's tokenizer: {error}") from None
    return folder


Command = Callable[[Path, int, Cell, Path], tuple[list[str], dict[str, str]]]
TOOLS: dict[str, tuple[Command, Callable[[Path], list[dict[str, float]]]]] = {
    "guidellm": (guidellm, read_guidellm),
    "aiperf": (aiperf, read_aiperf),
}


class Tool:
    """One of the tools."""

    def __init__(self, name: str, root: Path, folder: Path) -> None:
        self.name = name
        self._program = root / ".venv" / name / "bin" / name
        if not self._program.exists():
            raise Broken(f"not installed: tools/venv.sh {name}")
        self._folder = folder / name
        self._folder.mkdir()
        packages = list(self._program.parents[1].glob("lib/python*/site-packages"))
        found = {d.name: d.version for d in distributions(path=[str(path) for path in packages])}
        self.versions = {name: found[name]}

    def measure(self, cell: Cell, port: int) -> dict[str, Any]:
        """Measure one pass.

        Raises
        ------
        Broken
            With the last that the tool said, where it failed.
        """
        streams = cell.streams
        prompts = (json.dumps({"text": f"stream-{i}", "prompt": f"stream-{i}"}) for i in range(streams))
        (self._folder / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
        build, read = TOOLS[self.name]
        command, env = build(self._program, port, cell, self._folder)
        for old in (self._folder / "out.json", self._folder / "out" / "profile_export.jsonl"):
            old.unlink(missing_ok=True)  # the last pass's result must not pass for this one's
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | env,
            cwd=self._folder,
            start_new_session=True,
        ) as tool:
            try:
                output, _ = tool.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise Broken(f"not done after {TIMEOUT_S} s") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(tool.pid, signal.SIGKILL)  # its workers too: they would disturb the next pass
        try:
            found = read(self._folder)
        except (OSError, KeyError, ValueError) as error:
            said = output.strip().splitlines()[-1:]
            raise Broken(f"exit code {tool.returncode}, no result ({error}): {' '.join(said)[:200]}") from None
        if len(found) != streams:
            raise Broken(f"answers of {len(found)} of {streams} streams")
        return {"cpu_s": None, "wall_s": None, "streams": found}

    def close(self) -> None:
        """Nothing is kept."""
