#!/bin/sh
# build-once.sh DIR NAME COMMAND [INPUT]...: puts the programs that COMMAND builds into DIR.
#
# COMMAND writes them into the directory $OUT. They are kept in the user's cache, under a name that stands for Go, the platform,
# COMMAND and the contents of the INPUTs: the next clone of the repository gets them from there. Without a cache COMMAND
# builds them. What has a program's name is complete: files are written beside, and renamed.
set -eu
dir=$1 name=$2 command=$3
shift 3
hash() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }
go=${GO:-go}
key=$({ (cd "$(dirname "${1:-.}")" && "$go" env GOVERSION GOOS GOARCH GOAMD64 GOARM64 GOFLAGS); printf '%s\n' "$command"; cat /dev/null "$@"; } | hash | cut -c1-32)
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/nfqproxy/peers
kept=$cache/$name-$key.tar

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
OUT=$(mktemp -d "$dir/.$name.XXXXXX")
trap 'rm -rf "$OUT" "$kept.$$"' EXIT
export OUT
if ! { [ -n "$key" ] && tar -xmf "$kept" -C "$OUT"; } 2>/dev/null; then
	sh -euc "$command"
	# A cache that cannot be written, or is full, is no failure.
	{ [ -n "$key" ] && mkdir -p "$cache" && tar -cf "$kept.$$" -C "$OUT" . && sync "$kept.$$" && mv "$kept.$$" "$kept"; } 2>/dev/null || true
fi
for program in "$OUT"/*; do
	rm -rf "$dir/${program##*/}"
	mv "$program" "$dir/"
done
