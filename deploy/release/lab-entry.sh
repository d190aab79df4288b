#!/bin/sh
# The entrypoint of the image of labs. A container's published ports reach its eth0, and the page of a lab is on the
# loopback address: this connects both, in a network namespace of the container's own (whose eth0 is a veth).
set -eu
if [ ! -w /proc/sys/net/ipv4/conf/eth0/route_localnet ]; then
	echo "nfqproxy: labs in a container require docker run --privileged" >&2
	exit 1
fi
if ip -o link show dev eth0 type veth | grep -q .; then
	echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet
	nft -f - <<-'EOF'
		table ip lab-page {
			chain foreign {
				type filter hook prerouting priority raw
				iifname "eth0" ip daddr 127.0.0.0/8 drop
			}
			chain published {
				type nat hook prerouting priority dstnat
				iifname "eth0" tcp dport 10253 dnat to 127.0.0.1
			}
		}
	EOF
fi
exec "$@"
