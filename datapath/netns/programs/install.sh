#!/usr/bin/env bash
# Installs the Debian packages of debian.txt: all that tests and benchmarks call. Runs as root.
set -euo pipefail
cd "$(dirname "$0")"

missing=()
for p in $(sed -n 's/^\([^#:]*\):.*/\1/p' debian.txt); do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0
# The machine's own containerd is not needed, and is not started.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' > "$policy"
	chmod +x "$policy"
	trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends "${missing[@]}"
