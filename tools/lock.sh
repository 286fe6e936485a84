#!/usr/bin/env bash
# Resolve requirements/*.lock anew from pyproject.toml and requirements/*.in, for Python 3.11 to 3.13.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    .venv/report/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
        --no-header --annotation-style line "$@"
}

compile --all-extras pyproject.toml --output-file requirements/report.lock
compile pyproject.toml requirements/openai2.in --output-file requirements/openai2.lock
compile --group pyproject.toml:lab --output-file requirements/lab.lock
# an empty SAMEBYTES_TORCH_INDEX leaves the choice to uv's own configuration (UV_FIND_LINKS, UV_INDEX)
compile --excludes requirements/engine.exclude requirements/engine.in --output-file requirements/engine.lock \
    ${SAMEBYTES_TORCH_INDEX:+--extra-index-url "$SAMEBYTES_TORCH_INDEX" --index-strategy unsafe-best-match}
# an AIPerf or a GuideLLM of another version says other things: they are pinned in their .in
compile requirements/aiperf.in --output-file requirements/aiperf.lock
compile --excludes requirements/engine.exclude requirements/guidellm.in --output-file requirements/guidellm.lock \
    ${SAMEBYTES_TORCH_INDEX:+--extra-index-url "$SAMEBYTES_TORCH_INDEX" --index-strategy unsafe-best-match}
