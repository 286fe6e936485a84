from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from samebytes import paths, record
from samebytes.errors import RecordError
from samebytes.record import Pass, Record, Request


def make() -> Record:
    """A record with two prompts, one of them measured twice (the first pass was cut short)."""
    base = {
        "schema": record.SCHEMA,
        "status": "complete",
        "label": "baseline",
        "study": "s",
        "config": {"name": "baseline", "why": "w", "argv": ["vllm"], "env": {}},
        "model": {"id": "m"},
        "machine": {},
        "versions": {"samebytes": "0", "client_python": "3", "openai": "3"},
        "sampling": {"max_tokens": 8},
        "prompts": [{"id": "a/1", "workload": "a", "sha256": "x"}, {"id": "a/2", "workload": "a", "sha256": "y"}],
    }
    made = Record.model_validate(base)
    for launch, ids in enumerate([["a/1"], ["a/2"]]):
        made.passes.append(
            Pass(
                kind="sequential",
                launch=launch,
                concurrency=1,
                started="2026-01-01T00:00:00+00:00",
                started_mono=0.0,
                requests=[
                    Request(id=i, workload="a", status="ok", scheduled_s=0.0, chunks=[(0.1, 1), (0.2, None)])
                    for i in ids
                ],
            )
        )
    return made


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "s" / "r.json"
    record.save(make(), path)
    assert record.load(path) == make()
    assert json.loads(path.read_text())["passes"][0]["requests"][0]["chunks"] == [[0.1, 1], [0.2, None]]


def test_an_unmeasured_value_is_null_never_zero(tmp_path: Path) -> None:
    record.save(make(), tmp_path / "r.json")
    request = json.loads((tmp_path / "r.json").read_text())["passes"][0]["requests"][0]
    assert request["drafts"] is None
    assert request["ttft_s"] is None
    assert request["token_ids"] is None


def test_sequential_requests_come_in_prompt_order_over_all_launches() -> None:
    made = make()
    assert [request.id for request in made.sequential()] == ["a/1", "a/2"]
    assert made.resumed


def test_a_voided_pass_does_not_count() -> None:
    made = make()
    made.passes[0].voided = "disturbed"
    assert [request.id for request in made.sequential()] == ["a/2"]
    assert not made.resumed


def test_a_failed_write_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    record.save(make(), path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        record.save(make(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a record"),
        ('{"schema": 99}', "record schema 99; this version of samebytes reads 1"),
        ('{"schema": 1, "status": "complete"}', "label: Field required"),
    ],
)
def test_what_is_no_record_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=message):
        record.load(path)


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no record at .*none\.json"):
        record.load(tmp_path / "none.json")


def test_an_unknown_key_or_status_is_refused() -> None:
    with pytest.raises(ValidationError):
        Record.model_validate({**make().model_dump(by_alias=True), "speed": 1})
    with pytest.raises(ValidationError):
        make().passes[0].requests[0].status = "fine"  # type: ignore[assignment]


def test_nan_is_refused() -> None:
    made = make()
    made.passes[0].makespan_s = float("nan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.dumps(made)


def test_the_written_out_schema_is_the_models() -> None:
    written = json.loads((paths.results() / "record.schema.json").read_text())
    assert written == record.json_schema()
