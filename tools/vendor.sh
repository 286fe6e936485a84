#!/usr/bin/env bash
# Unpack thebe-core, which speaks to a Jupyter server from within a page, to .venv/npm/thebe-core: tools/vendor.sh
#
# Fetched once, from the npm registry that npm is configured for (or npm's own where there is no npm), and only taken
# when its digest is the one below. `make live` serves it from there: no page asks another host for it.
set -euo pipefail
cd "$(dirname "$0")/.."

name=thebe-core version=0.5.0
digest=906488b06fa9fa8ddf55be4b31feff1b8e3bb1235d4e3d132adb267b8b1f9c9f
target=.venv/npm/$name

mkdir -p .venv/npm
exec 9>.venv/npm/.lock
flock 9
[ "$(cat "$target/complete" 2>/dev/null)" = "$digest" ] && exit 0

echo "setting up $target from npm ($version)"
folder=$(mktemp -d .venv/npm/.part.XXXXXX)
trap 'rm -rf "$folder"' EXIT
if command -v npm >/dev/null; then
    npm pack --silent --pack-destination "$folder" "$name@$version" </dev/null >/dev/null
else
    curl -fsSL --retry 3 -o "$folder/$name-$version.tgz" "https://registry.npmjs.org/$name/-/$name-$version.tgz"
fi
echo "$digest  $folder/$name-$version.tgz" | sha256sum --check --quiet || {
    echo "$name $version is not what it was when its digest was written down: not taken" >&2
    exit 1
}
tar -xzf "$folder/$name-$version.tgz" -C "$folder" package/dist/lib package/LICENSE package/package.json
rm -rf "$target" "$folder"/package/dist/lib/*.map
mv "$folder/package" "$target"
echo "$digest" >"$target/complete"
