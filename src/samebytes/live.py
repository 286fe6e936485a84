"""Open the article's pages and the notebooks in JupyterLab, or serve the built article with its cells to run in place.

    .venv/lab/bin/python -P src/samebytes/live.py lab [options of Jupyter]
    .venv/lab/bin/python -P src/samebytes/live.py live [options of Jupyter]

Runs by path in JupyterLab's own environment, which holds nothing else of this package; its one kernel is the report's
environment, in the folder of the page: cells run as they do in a build. The server listens on the loopback interface
alone and asks for the token that it prints; on Ctrl-C it ends with its kernels, and a kernel ends when it dies.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.serverapp import ServerApp
from tornado import web

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
FIRST = "book/index"
THEBE = ROOT / ".venv" / "npm" / "thebe-core" / "dist" / "lib"

SHARED = (
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.allow_remote_access=False",  # no name of another host: a page elsewhere cannot point its own name here
    "--ServerApp.allow_root=True",  # containers; without the token nobody gets in there either
    "--ServerApp.answer_yes=True",  # Ctrl-C ends it without a question
    f"--ServerApp.root_dir={ROOT}",
)
LAB = (
    f"--LabApp.default_url=/lab/tree/{FIRST}.md",
    "--LabApp.extension_manager=readonly",
    "--LabApp.news_url=None",  # it asks no other host for anything
)
LIVE = (
    f"--ServerApp.default_url=/site/{FIRST}.html",
    "--ServerApp.terminals_enabled=False",
    "--MappingKernelManager.cull_idle_timeout=3600",
)
SETTINGS = {
    "@jupyterlab/docmanager-extension:plugin": {
        "defaultViewers": {"markdown": "Jupytext Notebook"},
        "autosave": False,  # who only reads a page shall not rewrite it
    },
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}
"""JupyterLab's own defaults: a page opens as a notebook, stays as it is, and nobody is asked about news."""


class Page(JupyterHandler, web.StaticFileHandler):
    """A file of the built site, for who has the token. A page is told which server runs its cells."""

    @web.authenticated
    async def get(  # type: ignore[override]  # the decorator hides what it takes
        self, path: str, include_body: bool = True
    ) -> None:
        """Answer with the file."""
        file = (SITE / path).resolve()
        if file.suffix != ".html" or not file.is_relative_to(SITE) or not file.is_file():
            await web.StaticFileHandler.get(self, path, include_body)  # refuses what lies outside of the site
            return
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        self.set_header("Cache-Control", "no-store")
        self.finish(told(file.read_text(encoding="utf-8"), path, self.base_url, self.identity_provider.token))

    def compute_etag(self) -> None:
        """A page holds this server's token: what another server said of the same file is no match."""


def told(page: str, path: str, base: str, token: str) -> str:
    """Return a page with what its ``live.js`` needs in order to run cells.

    Parameters
    ----------
    page : str
        HTML.
    path : str
        Where it lies in the site, which is where its notebook would lie in the project: its kernel starts there.
    base, token : str
        The server's.
    """
    server = {"base": base, "token": token, "thebe": f"{base}thebe/thebe-core.min.js", "kernel": "python3"}
    data = json.dumps(server | {"path": str(Path(path).with_suffix(".ipynb"))}).replace("<", "\\u003c")
    return page.replace("</head>", f'<script type="application/json" id="live-server">{data}</script></head>', 1)


def live(options: Sequence[str]) -> None:
    """Serve the built site with its cells to run."""
    for needed, target in ((SITE / f"{FIRST}.html", "book"), (THEBE, "thebe")):
        if not needed.exists():
            sys.exit(f"samebytes: {needed.relative_to(ROOT)} is missing: make {target}")
    os.environ["JUPYTER_NO_CONFIG"] = "1"  # how the reader's own servers are set up says nothing about this one
    app = ServerApp.instance()
    app.initialize([*SHARED, *LIVE, *options], find_extensions=False)
    app.web_app.add_handlers(
        ".*",
        [
            (f"{app.base_url}site/(.*)", Page, {"path": SITE}),
            (f"{app.base_url}thebe/(.*)", web.StaticFileHandler, {"path": THEBE}),
        ],
    )
    app.start()


def lab(options: Sequence[str]) -> None:
    """Open JupyterLab with the pages and the notebooks."""
    from jupyterlab.labapp import LabApp

    settings = Path(sys.prefix, "share", "jupyter", "lab", "settings", "overrides.json")
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(SETTINGS), encoding="utf-8")
    LabApp.launch_instance([*SHARED, *LAB, *options])


def main(argv: Sequence[str]) -> None:
    """Start one of the two servers and stay with it until its end."""
    servers = {"live": live, "lab": lab}
    if not argv or argv[0] not in servers:
        sys.exit(f"usage: live.py {'|'.join(servers)} [options of Jupyter]")
    os.environ["SAMEBYTES_ROOT"] = str(ROOT)
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # its own kernel, not one of the same name in the home folder
    servers[argv[0]](argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
