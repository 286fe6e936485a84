"""What every published number means. Pure: the standard library alone.

Times are seconds on one monotonic clock. A value that cannot be computed is ``None``, never 0: a zero would enter a
mean. ``N`` is always the server's ``usage.completion_tokens``; it is never counted from chunks, which may carry many
tokens each, and the text is never tokenised again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

MIN_SPEED_TOKENS = 32
"""An answer shorter than this many tokens counts for bytes, not for speed: its rate is mostly rounding."""

CLIENT_BUSY = 0.8
"""A client that used more of one core than this may have made its server look slow."""

CLIENT_LATE_S = 0.005
"""So may one whose event loop was later than this, one time in a hundred."""

POOL_FULL = 0.9
"""From this share of the KV pool in use up, requests wait for room."""


def client_bound(cpu_share: float | None, lag_p99_s: float | None) -> bool:
    """Return whether the client, not the server, may have limited a pass: busy or late.

    ``client-bound = cpu_share > CLIENT_BUSY or lag_p99_s > CLIENT_LATE_S``

    Parameters
    ----------
    cpu_share : float or None
        CPU seconds of the client per second; None (not measured) accuses nobody.
    lag_p99_s : float or None
        99th percentile of its event loop's lateness in seconds, or None.
    """
    return (cpu_share or 0.0) > CLIENT_BUSY or (lag_p99_s or 0.0) > CLIENT_LATE_S


def counts_for_speed(completion_tokens: int | None) -> bool:
    """Return whether an answer is long enough for its decode rate to be averaged: ``N >= MIN_SPEED_TOKENS``."""
    return completion_tokens is not None and completion_tokens >= MIN_SPEED_TOKENS


def ttft(sent: float | None, first_text: float | None) -> float | None:
    """Return the time to first token in seconds.

    ``TTFT = t_first - t_sent``

    t_first is the arrival of the first chunk that carries text, reasoning text or a tool-call delta (a role-only or
    empty chunk is no token); t_sent is the moment the request's last byte was handed to the socket,
    taken just before the call.

    Parameters
    ----------
    sent, first_text : float or None
        Seconds on one clock.

    Returns
    -------
    float or None
        Seconds; None where nothing was sent or no text ever came.
    """
    if sent is None or first_text is None:
        return None
    return first_text - sent


def decode_tok_s(
    completion_tokens: int | None, first_chunk_tokens: int | None, first_text: float | None, finish: float | None
) -> float | None:
    """Return the decode throughput of one request in tokens per second.

    ``decode tok/s = (N - k1) / (t_finish - t_first)``

    k1 are the completion tokens up to and with the first text-bearing chunk: they cost the prefill, not the decode,
    and a speculating server may send several at once. t_finish is the chunk that carries ``finish_reason``, where the
    end-of-sequence token (counted in N) arrives; the later usage-only chunk is not waited for. With k1 = 1 this is
    the usual (generated - 1) / decode time, the form of ``vllm bench serve``'s TPOT; the general form is AIPerf's
    (ai-dynamo/aiperf#1279).

    Parameters
    ----------
    completion_tokens : int or None
        N, from the server's usage.
    first_chunk_tokens : int or None
        k1; None (the server reports no usage per chunk) is taken as 1, and stays None in the record.
    first_text, finish : float or None
        Seconds on one clock.

    Returns
    -------
    float or None
        None where N is unknown, where all of N came in the first text-bearing chunk, or where no time passed.
    """
    if completion_tokens is None or first_text is None or finish is None:
        return None
    decoded = completion_tokens - (1 if first_chunk_tokens is None else first_chunk_tokens)
    elapsed = finish - first_text
    if decoded <= 0 or elapsed <= 0:
        return None
    return decoded / elapsed


def inter_chunk_latencies(arrivals: Sequence[float]) -> list[float]:
    """Return the gaps between successive chunks in seconds *per chunk*.

    ``gap_i = t_i - t_(i-1)``

    A chunk may carry many tokens (speculation, ``--stream-interval``, a parser that holds text back), so this is not
    the inter-token latency and must not be labelled so (vllm-project/vllm#27485).

    Parameters
    ----------
    arrivals : sequence of float
        Arrival of each token-bearing chunk, shape (chunks,).

    Returns
    -------
    list of float
        Shape (chunks - 1,), empty for fewer than two chunks.
    """
    return [later - earlier for earlier, later in pairwise(arrivals)]


def makespan(sent: Iterable[float | None], ended: Iterable[float | None]) -> float | None:
    """Return how long a pass took in seconds.

    ``makespan = last finish - first send``

    over all of its requests, failed ones included: a server that refuses work must not look faster.

    Parameters
    ----------
    sent : iterable of float or None
        Just before each request was handed to the socket; None for one that never was.
    ended : iterable of float or None
        When each request finished (for a failed one: when it ended).
    """
    starts = [t for t in sent if t is not None]
    ends = [t for t in ended if t is not None]
    if not starts or not ends:
        return None
    return max(ends) - min(starts)


def aggregate_tok_s(completion_tokens: Iterable[int | None], makespan_s: float | None) -> float | None:
    """Return the throughput of a pass over all its streams in tokens per second.

    ``aggregate tok/s = sum of N over successful requests / makespan``

    Parameters
    ----------
    completion_tokens : iterable of int or None
        N of each successful request.
    makespan_s : float or None
        Of all requests, from :func:`makespan`.

    Returns
    -------
    float or None
        None where a successful request has no N (a partial sum would understate) or no time passed.
    """
    counts = list(completion_tokens)
    if not counts or makespan_s is None or makespan_s <= 0:
        return None
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total / makespan_s


def acceptance_rate(accepted_tokens: float | None, draft_tokens: float | None) -> float | None:
    """Return the share of drafted tokens that the model accepted.

    ``acceptance rate = accepted / drafted``

    from ``vllm:spec_decode_num_accepted_tokens_total`` and ``..._draft_tokens_total``. The server also counts tokens
    accepted beyond the end of the answer: see :func:`overrun`. None where nothing was drafted.
    """
    if accepted_tokens is None or not draft_tokens:
        return None
    return accepted_tokens / draft_tokens


def mean_acceptance_length(accepted_tokens: float | None, drafts: float | None) -> float | None:
    """Return the mean number of tokens that a drafting step yields.

    ``mean acceptance length = 1 + accepted / drafts``

    vLLM's convention (the "Mean acceptance length" of its log): the 1 is the token that the model itself adds. Steps
    that drafted nothing are left out, so it overstates what n-gram speculation yields: see :func:`tokens_per_step`.
    None where no draft was made.
    """
    if accepted_tokens is None or not drafts:
        return None
    return 1 + accepted_tokens / drafts


def steps(chunk_tokens: Sequence[int | None]) -> int:
    """Return the engine's steps of one streamed answer: its chunks, less those known to carry no token.

    Holds where the server sends a chunk per step (no ``--stream-interval``, a client that keeps up).

    Parameters
    ----------
    chunk_tokens : sequence of int or None
        Completion tokens of each chunk, shape (chunks,); None: not reported.
    """
    return sum(tokens != 0 for tokens in chunk_tokens)


def tokens_per_step(completion_tokens: int | None, chunk_tokens: Sequence[int | None]) -> float | None:
    """Return the mean number of tokens of a step, steps that drafted nothing included.

    ``tokens per step = N / chunks``
    """
    count = steps(chunk_tokens)
    if completion_tokens is None or not count:
        return None
    return completion_tokens / count


def overrun(
    completion_tokens: int | None, chunk_tokens: Sequence[int | None], accepted_tokens: int | None
) -> int | None:
    """Return the accepted tokens that lay beyond the end of the answer and were thrown away.

    ``overrun = steps + accepted - N``

    Each step yields its own token and those accepted with it; what exceeds N came after the end-of-sequence token or
    the token limit, yet the server's counter of accepted tokens holds it.
    """
    if completion_tokens is None or accepted_tokens is None:
        return None
    return steps(chunk_tokens) + accepted_tokens - completion_tokens
