from __future__ import annotations

import threading
from pathlib import Path

import pytest

from samebytes.errors import UsageError
from samebytes.lock import locked


def test_a_lock_that_is_held_is_refused_until_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    with locked(path):
        with pytest.raises(UsageError, match="^somebody is at it$"):
            with locked(path, "somebody is at it"):
                pass
    with locked(path, "somebody is at it"):
        pass


def test_without_a_refusal_it_waits(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    order: list[str] = []

    def other() -> None:
        with locked(path):
            order.append("other")

    waiting = threading.Thread(target=other, daemon=True)
    with locked(path):
        waiting.start()
        waiting.join(0.2)
        order.append("first")
    waiting.join(30)
    assert order == ["first", "other"]
