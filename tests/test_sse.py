"""The specification's own examples, and cuts at every byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebytes import sse

FIXTURE = Path(__file__).with_name("fixtures") / "ngram.stream.sse"


def data(stream: bytes) -> list[str]:
    return [event.data for event in sse.decode([(0.0, stream)])]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", ["YHOO\n+2\n10"]),
        (b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n", None),
        (b"data\n\ndata\ndata\n\ndata:", ["", "\n"]),
        (b"data:test\n\ndata: test\n\n", ["test", "test"]),
        (b"data: a\r\rdata: b\r\n\r\ndata: c\n\n", ["a", "b", "c"]),
        (b"\xef\xbb\xbfdata: bom\n\n", ["bom"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: only one\n\n", []),
        (b"data: cut", []),
        (b"data: cut\n", []),
        (b"retry: 10\nnonsense: 1\n\n", []),
        (b"data: 1:2\n\n", ["1:2"]),
    ],
)
def test_the_specification(stream: bytes, expected: list[str] | None) -> None:
    assert data(stream) == (["first event", "second event", " third event"] if expected is None else expected)


def test_type_and_id() -> None:
    events = list(sse.decode([(0.0, b"event: error\nid: 7\ndata: x\n\ndata: y\n\nid: \0\ndata: z\n\nid\ndata: w\n\n")]))
    assert [(event.type, event.last_id) for event in events] == [
        ("error", "7"),
        ("message", "7"),
        ("message", "7"),
        ("message", ""),
    ]


def test_a_type_does_not_outlive_an_event_without_data() -> None:
    assert [event.type for event in sse.decode([(0.0, b"event: error\n\ndata: x\n\n")])] == ["message"]


def test_no_other_line_ends() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    assert data(f"data: {text}\n\n".encode()) == [text]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_cut_gives_the_same_events(end: bytes) -> None:
    stream = "\ufeffdata: é\u2028😀\nevent: x\ndata:b\n\n: c\n\ndata: z\n\n".encode().replace(b"\n", end)
    whole = [(event.data, event.type) for event in sse.decode([(0.0, stream)])]
    assert whole == [("é\u2028😀\nb", "x"), ("z", "message")]
    for size in range(1, len(stream)):
        pieces = [(float(i), stream[i : i + size]) for i in range(0, len(stream), size)]
        assert [(event.data, event.type) for event in sse.decode(pieces)] == whole


def test_an_event_arrives_with_its_blank_line() -> None:
    pieces = [
        (1.0, b"data: a\n"),
        (2.0, b"\nda"),
        (3.0, b"ta: b\r\n\r"),
        (4.0, b"\ndata: c\n\ndata: d\n\n"),
        (5.0, b""),
    ]
    assert [(event.data, event.t) for event in sse.decode(pieces)] == [("a", 2.0), ("b", 3.0), ("c", 4.0), ("d", 4.0)]


def test_a_real_stream_cut_at_every_size() -> None:
    stream = FIXTURE.read_bytes()
    whole = data(stream)
    assert len(whole) == 7
    assert whole[-1] == "[DONE]"
    for size in (1, 2, 3, 7, 100):
        assert [e.data for e in sse.decode((0.0, stream[i : i + size]) for i in range(0, len(stream), size))] == whole
