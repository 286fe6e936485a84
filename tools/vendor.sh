#!/usr/bin/env bash
# Unpack what comes from npm to .venv/npm/NAME: tools/vendor.sh thebe-core|axe-core ...
#
#   thebe-core   speaks to a Jupyter server from within a page; `make live` serves it from there
#   axe-core     finds what keeps a page from those who do not see or do not point; only the tests load it
#
# Fetched once, from the npm registry that npm is configured for (or npm's own where there is no npm), and only taken
# when its digest is the one below. No page asks another host for it.
set -euo pipefail
cd "$(dirname "$0")/.."

take() { # name, version, digest, then what to unpack
    local name=$1 version=$2 digest=$3 target=.venv/npm/$1 folder
    shift 3
    [ "$(cat "$target/complete" 2>/dev/null)" = "$digest" ] && return

    echo "setting up $target from npm ($version)"
    folder=$(mktemp -d .venv/npm/.part.XXXXXX)
    # shellcheck disable=SC2064 # the folder of this call
    trap "rm -rf '$folder'" EXIT
    if command -v npm >/dev/null; then
        npm pack --silent --pack-destination "$folder" "$name@$version" </dev/null >/dev/null
    else
        curl -fsSL --retry 3 -o "$folder/$name-$version.tgz" \
            "https://registry.npmjs.org/$name/-/$name-$version.tgz"
    fi
    echo "$digest  $folder/$name-$version.tgz" | sha256sum --check --quiet || {
        echo "$name $version is not what it was when its digest was written down: not taken" >&2
        exit 1
    }
    tar -xzf "$folder/$name-$version.tgz" -C "$folder" "${@/#/package/}" package/LICENSE package/package.json
    rm -rf "$target" "$folder"/package/dist/lib/*.map
    mv "$folder/package" "$target"
    rm -rf "$folder"
    echo "$digest" >"$target/complete"
}

mkdir -p .venv/npm
exec 9>.venv/npm/.lock
flock 9
for name in "$@"; do
    case $name in
    thebe-core) take "$name" 0.5.0 906488b06fa9fa8ddf55be4b31feff1b8e3bb1235d4e3d132adb267b8b1f9c9f dist/lib ;;
    axe-core) take "$name" 4.14.1 e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745 axe.min.js ;;
    *)
        echo "unknown package $name. Valid: axe-core, thebe-core" >&2
        exit 1
        ;;
    esac
done
