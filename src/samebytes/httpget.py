"""One plain request, for the server's own pages (``/health``, ``/v1/models``, ``/metrics``, ``/start_profile``)."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """An HTTP answer, whatever its status."""

    status: int
    body: str


def get(url: str, api_key: str | None = None, timeout: float = 5.0) -> Answer:
    """Fetch ``url``, see `ask`."""
    return ask("GET", url, api_key, timeout)


def ask(method: str, url: str, api_key: str | None = None, timeout: float = 5.0) -> Answer:
    """Send a request without a body; a server on this machine is never asked through a proxy.

    Parameters
    ----------
    method : str
        ``"GET"`` or ``"POST"``.
    url : str
        Full address.
    api_key : str or None
        Sent as a bearer token.
    timeout : float
        Seconds that each socket operation may take.

    Raises
    ------
    OSError
        Where no HTTP answer came: refused, reset, timed out, name not known.
    """
    host = urlsplit(url).hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with opener.open(request, timeout=timeout) as response:
            return Answer(response.status, response.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode("utf-8", "replace"))
    except http.client.HTTPException as error:
        raise ConnectionError(f"not an HTTP answer: {error!r}") from None
