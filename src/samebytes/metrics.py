"""The server's ``/metrics`` page: exact names over vLLM 0.8-0.33, and what changed between two scrapes.

A metric that the server does not export is None, never 0.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from prometheus_client.parser import text_string_to_metric_families

from samebytes.errors import EngineError, SamebytesError
from samebytes.httpget import get

_HISTOGRAMS = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "queue_time": ("vllm:request_queue_time_seconds",),
    "prefill_time": ("vllm:request_prefill_time_seconds",),
    "decode_time": ("vllm:request_decode_time_seconds",),
    "inference_time": ("vllm:request_inference_time_seconds",),
    "e2e_latency": ("vllm:e2e_request_latency_seconds",),
    # Per request. The older vllm:time_per_output_token_seconds is no alias of it: that one is per output event.
    "time_per_output_token": ("vllm:request_time_per_output_token_seconds",),
    # Per output event, which under speculation carries several tokens.
    "inter_token_latency": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    # Its count is the number of engine steps.
    "iteration_tokens": ("vllm:iteration_tokens_total",),
}

_GAUGES: dict[str, tuple[str, ...]] = {
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "process_start_time": ("process_start_time_seconds",),
}

_COUNTERS: dict[str, tuple[str, ...]] = {
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "prompt_tokens_cached": ("vllm:prompt_tokens_cached_total",),
    "prefix_cache_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "preemptions": ("vllm:num_preemptions_total",),
    "requests_finished": ("vllm:request_success_total",),
    **{
        f"{name}_{part}": tuple(f"{alias}_{part}" for alias in aliases)
        for name, aliases in _HISTOGRAMS.items()
        for part in ("sum", "count")
    },
}

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType({**_COUNTERS, **_GAUGES})
"""Canonical name to the exact names of its series, newest first. Of two that are present the newer counts alone."""

_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_CACHE_CONFIG = "vllm:cache_config_info"


class MetricsUnavailable(SamebytesError):
    """The server answers, but has no readable ``/metrics`` page."""


class CounterReset(EngineError):
    """A counter fell or vanished, or the server process changed: the interval measures nothing."""


@dataclass(frozen=True)
class Snapshot:
    """One scrape."""

    t_mono: float
    """When the answer was there, ``time.monotonic()`` seconds."""
    values: Mapping[str, float | None]
    """Every canonical name; summed over the series' labels (engines), the usage gauge its maximum."""
    per_position: tuple[float, ...] | None
    """Accepted tokens by draft position, from 0."""
    cache_config: Mapping[str, str]
    """Labels of ``vllm:cache_config_info``; empty where it is not exported."""
    settled: bool | None = None
    """From `settle`: whether the server had come to rest."""

    def value(self, name: str) -> float | None:
        """Return the value of a canonical name, None where the server does not export it.

        Raises
        ------
        KeyError
            Where the name is not in `ALIASES`.
        """
        return self.values[name]

    def accepted_per_pos(self) -> list[float] | None:
        """Return the accepted tokens by draft position, None without speculation."""
        return None if self.per_position is None else list(self.per_position)

    @property
    def prefix_caching(self) -> bool | None:
        """Whether prefix caching is on, by the server's own word."""
        return {"True": True, "False": False}.get(self.cache_config.get("enable_prefix_caching", ""))


def parse(text: str, t_mono: float | None = None) -> Snapshot:
    """Read a page in Prometheus' text format.

    Parameters
    ----------
    text : str
        The page.
    t_mono : float or None
        When it was fetched; now where left out.

    Raises
    ------
    ValueError
        Where the text is not in that format.
    """
    # Buckets are four fifths of the page and none is used.
    kept = "\n".join(line for line in text.splitlines() if "_bucket{" not in line) + "\n"
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(kept):
        for sample in family.samples:
            series.setdefault(sample.name, []).append((sample.labels, sample.value))
    values: dict[str, float | None] = {}
    for canonical, names in ALIASES.items():
        found = next((series[name] for name in names if name in series), None)
        # A share of the pool does not add up over engines; the fullest pool is the one that preempts.
        combine = max if canonical == "kv_cache_usage" else sum
        values[canonical] = None if found is None else float(combine(value for _, value in found))
    by_position: dict[int, float] = {}
    for labels, value in series.get(_PER_POSITION, []):
        position = int(labels["position"])
        by_position[position] = by_position.get(position, 0.0) + value
    config = series.get(_CACHE_CONFIG)
    return Snapshot(
        t_mono=time.monotonic() if t_mono is None else t_mono,
        values=MappingProxyType(values),
        per_position=tuple(by_position.get(i, 0.0) for i in range(max(by_position) + 1)) if by_position else None,
        cache_config=MappingProxyType(dict(config[0][0]) if config else {}),
    )


def fetch(base_url: str, api_key: str | None = None, timeout: float = 5.0) -> Snapshot:
    """Scrape ``/metrics`` once.

    Parameters
    ----------
    base_url : str
        The server's address without ``/v1``.
    api_key : str or None
        Sent as a bearer token.
    timeout : float
        Seconds.

    Raises
    ------
    MetricsUnavailable
        Where the server has no such page (another engine, a proxy): the values are unknown, not zero.
    EngineError
        Where nothing answers, or the server fails.
    """
    url = f"{base_url}/metrics"
    try:
        answer = get(url, api_key, timeout)
    except OSError as error:
        raise EngineError(f"no answer from {url}: {error}") from None
    if answer.status >= 500:
        raise EngineError(f"{url} answered {answer.status}")
    if answer.status != 200:
        raise MetricsUnavailable(f"{url} answered {answer.status}: this server exports no metrics")
    try:
        return parse(answer.body)
    except (ValueError, KeyError):
        raise MetricsUnavailable(f"{url} is not in Prometheus' text format") from None


def settle(base_url: str, timeout_s: float = 2.0, api_key: str | None = None, interval_s: float = 0.05) -> Snapshot:
    """Scrape until nothing runs or waits in two scrapes that agree: the counters lag the last chunk of an answer.

    Parameters
    ----------
    base_url : str
        The server's address without ``/v1``.
    timeout_s : float
        Seconds after which the last scrape is returned as it is.
    api_key : str or None
        Sent as a bearer token.
    interval_s : float
        Seconds between two scrapes.

    Returns
    -------
    Snapshot
        The last scrape; ``settled`` says whether the server had come to rest.

    Raises
    ------
    MetricsUnavailable, EngineError
        As `fetch`.
    """
    deadline = time.monotonic() + timeout_s
    before = fetch(base_url, api_key)
    while True:
        time.sleep(interval_s)
        now = fetch(base_url, api_key)
        agreed = now.per_position == before.per_position and all(now.values[n] == before.values[n] for n in _COUNTERS)
        settled = agreed and _resting(before) and _resting(now)
        if settled or now.t_mono >= deadline:
            return replace(now, settled=settled)
        before = now


def _resting(page: Snapshot) -> bool:
    # Not exported counts as at rest: then the agreement of the counters has to do.
    return not page.value("requests_running") and not page.value("requests_waiting")


def delta(before: Snapshot, after: Snapshot) -> dict[str, float | None]:
    """Return the increase of every counter, by canonical name; None where it is not exported.

    Raises
    ------
    CounterReset
        Where a counter fell or vanished, or ``process_start_time_seconds`` changed.
    """
    started, restarted = before.value("process_start_time"), after.value("process_start_time")
    if started is not None and restarted is not None and started != restarted:
        raise CounterReset(f"the server restarted: process_start_time_seconds went from {started} to {restarted}")
    increases: dict[str, float | None] = {}
    for name in _COUNTERS:
        old, new = before.values[name], after.values[name]
        if old is not None and new is None:
            raise CounterReset(f"the counter {name} vanished (it was {old:g}): another server answers")
        increases[name] = None if old is None or new is None else _increase(name, old, new)
    return increases


def delta_per_pos(before: Snapshot, after: Snapshot) -> list[float] | None:
    """Return the increase of the accepted tokens by draft position; None without speculation.

    Raises
    ------
    CounterReset
        Where one of them fell, or their number changed.
    """
    old, new = before.per_position, after.per_position
    if old is None:
        return None
    if new is None or len(new) != len(old):
        raise CounterReset("the accepted tokens by position changed their shape: another server answers")
    names = [f"accepted_tokens at position {i}" for i in range(len(old))]
    return [_increase(*triple) for triple in zip(names, old, new, strict=True)]


def _increase(name: str, before: float, after: float) -> float:
    if after < before:
        raise CounterReset(f"the counter {name} fell from {before:g} to {after:g}: the server restarted")
    return after - before
