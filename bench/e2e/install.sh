#!/usr/bin/env bash
# Installs the Debian packages that bench/e2e needs: what runs on the nodes, and the programs that
# are copied into the tests' images. Runs as root.
set -euo pipefail

packages=(
	containerd runc containernetworking-plugins # nodes
	conntrack ethtool ipset iptables nftables iproute2 openssl util-linux # kubelet, network plugins, kube-proxy; certificates
	bash bind9-dnsutils bind9-host curl iputils-ping mawk netcat-openbsd procps wget # images
)
missing=()
for p in "${packages[@]}"; do
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
