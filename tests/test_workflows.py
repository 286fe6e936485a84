"""The workflow files: actions pinned by digest, the least permissions, no secrets, commands that exist."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from conftest import ROOT

FOLDER = ROOT / ".github" / "workflows"
NAMES = sorted(path.name for path in FOLDER.iterdir())
TARGETS = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
WRITES = {("pages.yml", "deploy"): {"pages": "write", "id-token": "write"}}
"""All that any job may write: to publish the site. Every other job reads the repository."""


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def jobs(name: str) -> dict[str, Any]:
    found = yaml.safe_load(text(name))
    assert found["permissions"] == {}, "what a job does not ask for it does not get"
    return dict(found["jobs"])


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in jobs(name).values() for step in job["steps"]]


def test_there_is_one_to_publish_one_to_execute_again_and_one_ahead_of_the_lock() -> None:
    assert NAMES == ["book.yml", "newest.yml", "pages.yml"]


@pytest.mark.parametrize("name", NAMES)
def test_every_action_is_pinned_by_digest_with_its_version_beside_it(name: str) -> None:
    used = [step["uses"] for step in steps(name) if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
    assert len(re.findall(r"uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", text(name), re.MULTILINE)) == len(used)


def test_an_action_has_one_digest_everywhere() -> None:
    pins = {step["uses"] for name in NAMES for step in steps(name) if "uses" in step}
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins)


@pytest.mark.parametrize("name", NAMES)
def test_each_job_has_the_least_permissions_and_a_time_limit(name: str) -> None:
    for job, given in jobs(name).items():
        assert given["permissions"] == WRITES.get((name, job), {"contents": "read"})
        assert given["timeout-minutes"] <= 45
        assert "continue-on-error" not in given, "a failure shows"


@pytest.mark.parametrize("name", NAMES)
def test_no_secret_and_no_text_from_outside_in_a_command(name: str) -> None:
    assert "secrets" not in text(name)
    for step in steps(name):
        assert "${{" not in step.get("run", "")
        assert "continue-on-error" not in step
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("name", NAMES)
def test_every_target_exists(name: str) -> None:
    called = [
        word for step in steps(name) if (run := step.get("run", "")).startswith("make ") for word in run.split()[1:]
    ]
    assert set(called) <= TARGETS
    assert called or name != "book.yml"


@pytest.mark.parametrize("name", ["book.yml", "newest.yml"])
def test_the_scheduled_ones_come_weekly_and_by_hand(name: str) -> None:
    (schedule,) = re.findall(r'cron: "(.*)"', text(name))
    minute, hour, *days = schedule.split()
    assert 0 < int(minute) < 60, "not at the full hour, when all others start"
    assert 0 <= int(hour) < 24
    assert days == ["*", "*", "1"]
    assert "workflow_dispatch:" in text(name)
