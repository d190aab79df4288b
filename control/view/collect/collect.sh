#!/bin/sh
# Collects what a node does with packets, for nfqproxy: rules, addresses, routes, sysctls, connection entries, versions,
# and kube-proxy's configuration. It only reads; listing may load kernel modules. Run it as root on the node:
#   sh collect.sh [FILE]    writes NODE.tar.gz, or FILE; - is standard output, a name without gz at its end a directory
set -u; umask 077
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
node=$(uname -n | tr -cd 'A-Za-z0-9._-')
out=${1:-$node.tar.gz}
case $out in
-|*gz) tmp=$(mktemp -d) || exit 2; trap 'rm -rf "$tmp"' EXIT; d=$tmp/nfqproxy-bundle ;;
*) d=$out ;;
esac
mkdir "$d" && : >"$d/notes.txt" || exit 2

get() { # FILE PROGRAM ARGUMENT...: keeps what the program prints, or notes why there is nothing
	file=$d/$1; shift
	if ! command -v "$1" >/dev/null; then why='not installed'
	elif "$@" >"$file" 2>"$d/error" </dev/null; then rm "$d/error"; return 0
	else why="exit code $?: $(head -n 1 "$d/error")"; rm -f "$file" "$d/error"; fi
	echo "$*: $why" >>"$d/notes.txt"; return 1
}
get_ip() { f=$1; shift; get "$f.json" ip -j "$@" || get "$f.txt" ip "$@"; }

for v in '' 6; do
	found=
	for b in legacy nft; do get "ip${v}tables-$b.rules" "ip${v}tables-$b-save" -c && found=1; done
	[ "$found" ] || get "ip${v}tables.rules" "ip${v}tables-save" -c
done
get nftables.rules nft -a list ruleset
get nftables.json nft -a -j list ruleset
if [ -e /proc/net/ip_vs ]; then get ipvsadm-save.txt ipvsadm -Sn; get ipvsadm-stats.txt ipvsadm -Ln --stats; fi
get ipset-save.txt ipset save
get_ip addr addr
get link.json ip -j -d link || get link.txt ip link; get qdisc.txt tc qdisc show
for v in 4 6; do
	get_ip "route$v" "-$v" route show table all; get_ip "rule$v" "-$v" rule; get_ip "neigh$v" "-$v" neigh
	get "conntrack$v.txt" conntrack -L -f "ipv$v" -o extended
done
get conntrack-stats.txt conntrack -S
(cd /proc/sys/net && grep -s . ipv4/ip_forward ipv4/ip_local_port_range ipv4/ip_nonlocal_bind ipv4/fwmark_reflect ipv4/vs/* bridge/bridge-nf-* \
	netfilter/nf_conntrack_* ipv4/conf/*/forwarding ipv4/conf/*/route_localnet ipv4/conf/*/rp_filter ipv4/conf/*/accept_local ipv4/conf/all/src_valid_mark \
	ipv4/conf/*/arp_ignore ipv4/conf/*/arp_announce ipv6/conf/*/forwarding ipv6/conf/*/disable_ipv6) | sed 's,^,net/,; s,:, = ,' >"$d/sysctls.txt"
{
	uname -a; cat /etc/os-release
	for p in 'iptables -V' 'nft -v' 'ipset -v' 'ipvsadm -v' 'conntrack -V' 'ip -V'; do echo "$p: $($p 2>&1 | head -n 1)"; done
} >"$d/versions.txt" 2>/dev/null
for p in $(grep -ls kube-proxy /proc/[0-9]*/cmdline); do
	[ "$(readlink "${p%cmdline}ns/net") $(tr '\0' '\n' 2>/dev/null <"$p" | sed -n '1{s,.*/,,;p;q;}')" = "$(readlink /proc/self/ns/net) kube-proxy" ] || continue
	tr '\0' '\n' <"$p" >"$d/kube-proxy.args"
	config=$(sed -n '/^--config$/{n;p;}; s/^--config=//p' "$d/kube-proxy.args")
	[ -z "$config" ] || get kube-proxy.conf cat "${p%cmdline}root$config"
done
printf '{"version": 1, "created": "%s", "program": "collect --script", "node": "%s"}\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$node" >"$d/bundle.json"
case $(id -u 2>/dev/null) in '' | 0) ;; *) echo "warning: only root can read rules and connection entries: run it again as root" >&2 ;; esac
case $out in
-) tar -C "$tmp" -czf - nfqproxy-bundle ;;
*gz) tar -C "$tmp" -czf "$out" nfqproxy-bundle && echo "wrote $out" >&2 ;;
*) echo "wrote $out" >&2 ;;
esac
