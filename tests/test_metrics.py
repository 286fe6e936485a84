"""The metrics page: real pages of two versions, and what a page may become."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from samebytes import metrics
from samebytes.errors import EngineError
from samebytes.metrics import CounterReset, MetricsUnavailable, delta, delta_per_pos, fetch, parse, settle
from samebytes.server import free_port
from siteserver import answering

FIXTURES = Path(__file__).parent / "fixtures"
GPU = (FIXTURES / "vllm-0.20.0-h200" / "ngram.metrics.txt").read_text()
CPU = (FIXTURES / "vllm-0.32.0-cpu" / "ngram.metrics.txt").read_text()


def test_page_of_0_20() -> None:
    page = parse(GPU, t_mono=5.0)
    found = {name: page.value(name) for name in ("drafts", "draft_tokens", "accepted_tokens", "preemptions")}
    assert found == {"drafts": 414, "draft_tokens": 2064, "accepted_tokens": 996, "preemptions": 0}
    assert (page.value("generation_tokens"), page.value("prompt_tokens")) == (1914, 1266)
    assert page.value("prompt_tokens_cached") == 0
    assert page.value("process_start_time") == 1795978533.78
    assert page.accepted_per_pos() == [294, 213, 174, 162, 153]
    assert sum(page.accepted_per_pos() or []) == page.value("accepted_tokens")
    assert page.value("requests_finished") == 9  # over all reasons
    assert page.value("ttft_count") == 9
    assert page.value("ttft_sum") == pytest.approx(3.0506978)
    assert page.value("decode_time_sum") == pytest.approx(5.6409579)
    assert page.value("queue_time_sum") == pytest.approx(0.000258091)
    assert page.value("iteration_tokens_count") == 933
    assert page.cache_config["cache_dtype"] == "auto"
    assert page.prefix_caching is False
    assert page.t_mono == 5.0
    assert page.settled is None


def test_page_of_0_32() -> None:
    page = parse(CPU)
    assert page.accepted_per_pos() == [40, 33, 30, 28, 27]
    assert page.cache_config["kv_cache_size_tokens"] == "93184"
    assert page.value("generation_tokens") == 342


def test_every_canonical_name_has_a_value_on_the_pages_of_a_speculating_server() -> None:
    for text in (GPU, CPU):
        page = parse(text)
        assert [name for name in metrics.ALIASES if page.value(name) is None] == []


def test_a_baseline_exports_no_drafts_and_none_is_not_zero() -> None:
    page = parse((FIXTURES / "vllm-0.20.0-h200" / "baseline.metrics.txt").read_text())
    assert page.value("drafts") is None
    assert page.accepted_per_pos() is None
    assert delta(page, page)["drafts"] is None
    assert delta(page, page)["generation_tokens"] == 0
    assert delta_per_pos(page, page) is None


def test_fp8_is_seen_in_the_cache_config() -> None:
    page = parse((FIXTURES / "vllm-0.20.0-h200" / "fp8.metrics.txt").read_text())
    assert page.cache_config["cache_dtype"] == "fp8"


def test_an_empty_page_knows_nothing() -> None:
    page = parse("")
    assert set(page.values.values()) == {None}
    assert page.cache_config == {}
    assert page.prefix_caching is None


def test_an_unknown_name_is_a_mistake_not_a_none() -> None:
    with pytest.raises(KeyError):
        parse("").value("generation_tokens_total")


OLD_AND_NEW = """\
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0"} 0.25
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.5
# TYPE vllm:gpu_prefix_cache_hits counter
vllm:gpu_prefix_cache_hits_total{engine="0"} 3.0
"""


def test_of_an_old_and_a_new_name_the_new_one_counts() -> None:
    page = parse(OLD_AND_NEW)
    assert page.value("kv_cache_usage") == 0.5
    assert page.value("prefix_cache_hits") == 3  # only the old one there


TWO_ENGINES = """\
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 10.0
vllm:generation_tokens_total{engine="1",model_name="m"} 5.0
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{engine="0",model_name="m"} 1.79e+09
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.9
vllm:kv_cache_usage_perc{engine="1"} 0.3
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 2.0
"""


def test_engines_are_summed_but_not_their_usage() -> None:
    page = parse(TWO_ENGINES)
    assert page.value("generation_tokens") == 15
    assert page.value("kv_cache_usage") == 0.9
    assert page.accepted_per_pos() == [6, 1]


def counters(generation: float, start: float = 100.0, per_position: tuple[float, ...] = (3, 1)) -> str:
    positions = "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {value}\n'
        for i, value in enumerate(per_position)
    )
    return (
        f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}\n"
        f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total {generation}\n"
        f"# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter\n{positions}"
    )


def test_delta() -> None:
    before, after = parse(counters(10)), parse(counters(25, per_position=(5, 1)))
    changes = delta(before, after)
    assert changes["generation_tokens"] == 15
    assert changes["preemptions"] is None
    assert not set(changes) & {"kv_cache_usage", "requests_running", "requests_waiting", "process_start_time"}
    assert delta_per_pos(before, after) == [2, 0]


def test_a_counter_that_fell() -> None:
    with pytest.raises(CounterReset, match="generation_tokens fell from 10 to 4"):
        delta(parse(counters(10)), parse(counters(4)))
    with pytest.raises(CounterReset, match="position 1 fell from 1 to 0"):
        delta_per_pos(parse(counters(1)), parse(counters(1, per_position=(3, 0))))


def test_another_process_though_the_counters_grew() -> None:
    with pytest.raises(CounterReset, match="the server restarted"):
        delta(parse(counters(10)), parse(counters(11, start=200.0)))


def test_without_a_start_time_the_counters_have_to_do() -> None:
    bare = "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total 12\n"
    assert delta(parse(bare), parse(bare))["generation_tokens"] == 0


def test_a_counter_that_vanished_or_appeared() -> None:
    with pytest.raises(CounterReset, match="generation_tokens vanished"):
        delta(parse(counters(10)), parse(""))
    with pytest.raises(CounterReset, match="changed their shape"):
        delta_per_pos(parse(counters(1)), parse(counters(1, per_position=(3,))))
    assert delta(parse(""), parse(counters(10)))["generation_tokens"] is None


@contextmanager
def serving(answer: Callable[[], tuple[int, str]]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server whose every page is the next answer, and the headers it was sent."""
    seen: list[dict[str, str]] = []

    def page(_: str, headers: Mapping[str, str]) -> tuple[int, str]:
        seen.append(dict(headers))
        return answer()

    with answering(page) as address:
        yield address, seen


def test_fetch_goes_past_the_proxy_and_sends_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with serving(lambda: (200, GPU)) as (base_url, seen):
        start = time.monotonic()
        page = fetch(base_url, api_key="secret")
        assert start <= page.t_mono <= time.monotonic()
        assert page.value("generation_tokens") == 1914
    assert seen[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("answer", [(404, "no"), (401, "no"), (200, "<html>no metrics</html>"), (200, "{}")])
def test_a_server_without_metrics(answer: tuple[int, str]) -> None:
    with serving(lambda: answer) as (base_url, _), pytest.raises(MetricsUnavailable):
        fetch(base_url)


def test_a_dead_server_is_not_one_without_metrics() -> None:
    with pytest.raises(EngineError, match="no answer"):
        fetch(f"http://127.0.0.1:{free_port()}")
    with serving(lambda: (500, "")) as (base_url, _), pytest.raises(EngineError, match="answered 500"):
        fetch(base_url)


def busy(running: int, generation: int) -> str:
    return (
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {running}\n"
        f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total {generation}\n"
    )


def test_settle_waits_for_rest_and_for_two_scrapes_to_agree() -> None:
    # still running; then at rest, but the last tokens not counted yet; then counted
    pages = iter([busy(1, 5), busy(1, 5), busy(0, 5), busy(0, 8), busy(0, 8), busy(0, 99)])
    with serving(lambda: (200, next(pages))) as (base_url, seen):
        page = settle(base_url)
    assert page.settled is True
    assert page.value("generation_tokens") == 8
    assert len(seen) == 5


def test_settle_gives_up_and_says_so() -> None:
    with serving(lambda: (200, busy(1, 5))) as (base_url, _):
        start = time.monotonic()
        page = settle(base_url, timeout_s=0.4)
        assert 0.4 <= time.monotonic() - start < 1.5
    assert page.settled is False
    assert page.value("generation_tokens") == 5
