#!/usr/bin/env bash
# Make sure that there is a Chromium for the browser tests: tools/browser.sh
#
# Takes what is there. Otherwise installs Debian's or Ubuntu's package, where this user may; else says what to do.
#   CHROMIUM   browser to use (default: the first of the usual names that is found)
set -euo pipefail

names=(chromium chromium-browser google-chrome)
[ -n "${CHROMIUM:-}" ] && names=("$CHROMIUM")
for name in "${names[@]}"; do
    command -v "$name" >/dev/null && exit 0
done

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo -n)
if [ -z "${CHROMIUM:-}" ] && command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null; then
    echo "setting up chromium from the distribution's packages"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    # fonts by name: without one, a page in a fresh container has no letters
    if "${as_root[@]}" apt-get update >"$log" 2>&1 && "${as_root[@]}" apt-get install -y --no-install-recommends \
        chromium fonts-dejavu-core >>"$log" 2>&1; then
        exit 0
    fi
    tail -n 5 "$log" >&2
fi
echo "the browser tests need Chromium: install it (Debian: apt-get install chromium), or name one with CHROMIUM=/path" >&2
exit 1
