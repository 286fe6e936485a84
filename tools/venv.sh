#!/usr/bin/env bash
# Install one environment exactly as its lock says: tools/venv.sh report|engine|openai2|lab|guidellm|aiperf
#
# Does nothing where the environment is complete and its lock unchanged. Otherwise builds it from nothing, so that
# what an interrupted or older install left cannot stay.
#   PYTHON                  interpreter to use (default: the first of 3.11 to 3.13 that is found)
#   SAMEBYTES_TORCH_INDEX   index with the CPU build of torch, asked where the configured one has none
set -euo pipefail
cd "$(dirname "$0")/.."

name=$1
lock=requirements/$name.lock
venv=.venv/$name
torch_index=${SAMEBYTES_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

python() {
    local candidates=(python3.11 python3 python3.12 python3.13) candidate
    [ -n "${PYTHON:-}" ] && candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "samebytes needs Python 3.11, 3.12 or 3.13; tried: ${candidates[*]}. Name one with: make PYTHON=/path/to/python" >&2
    return 1
}

if [ -t 1 ]; then quiet=(); else quiet=(-qq --progress-bar off); fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" </dev/null; }
install() { pip install "${quiet[@]}" --no-deps --only-binary=:all: "$@"; }

mkdir -p .venv
exec 9>".venv/.$name.lock"
flock 9 # two calls at once: the second waits, then finds it done

# the folder is part of the mark: a virtual environment does not survive a move
mark="$PWD $(sha256sum "$lock")"
if [ "$(cat "$venv/complete" 2>/dev/null)" = "$mark" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

interpreter=$(python)
echo "setting up $venv from $lock ($("$interpreter" --version))"
rm -rf "$venv"
if ! "$interpreter" -m venv "$venv"; then
    echo "$interpreter cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
fi
if grep -q '^torch==.*+cpu' "$lock"; then
    # on its own, so that the extra index can serve nothing but torch
    torch=$(grep -o '^torch==[^ ;]*' "$lock")
    install "$torch" 2>/dev/null || install --index-url "$torch_index" "$torch"
fi
install -r "$lock"
[ "$name" = engine ] || pip check >/dev/null || pip check # the engine's lock leaves out what it declares but never loads
case $name in
report | openai2) pip install -qq --no-deps --no-build-isolation --editable . ;;
lab) # its kernel is the report environment, where the pages' cells run as they do in a build
    .venv/report/bin/python -m ipykernel install --prefix "$venv" --name python3 --display-name "Python 3 (samebytes)" >/dev/null 2>&1
    ;;
esac
echo "$mark" >"$venv/complete"
