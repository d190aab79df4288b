#!/usr/bin/env bash
# Installs the Debian packages of debian.txt: all that tests and benchmarks call. Runs as root.
set -euo pipefail
cd "$(dirname "$0")"

# A package whose programs are there from elsewhere, as npm of NodeSource, is not missing.
missing=()
while IFS=: read -r p programs; do
	if [ -n "$programs" ]; then
		type $programs >/dev/null 2>&1 || missing+=("$p")
	else
		dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
	fi
done < <(sed '/^#/d' debian.txt)
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
