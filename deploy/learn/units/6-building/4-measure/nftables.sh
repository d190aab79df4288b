#!/bin/bash
# nftables.sh NUMBER: loads the table of kube-proxy's mode nftables, for web and that number of the Services of services.sh,
# shortened: without node ports and hairpin connections, and with one hash in the names of chains. In parts of 250 Services:
# without root rights, the kernel takes only so much in one message.
add() { # NAME ADDRESS
  echo "add chain ip kube-proxy service-COURSE22-default/$1/tcp/http
add rule ip kube-proxy service-COURSE22-default/$1/tcp/http meta l4proto tcp dnat ip addr . port to numgen random mod 1 map { 0 : 10.244.3.2 . 8080 }
add element ip kube-proxy service-ips { $2 . tcp . 80 : goto service-COURSE22-default/$1/tcp/http }"
}
{
  echo 'add table ip kube-proxy
delete table ip kube-proxy
table ip kube-proxy {
  map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
  chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
}'
  add web 10.96.255.1
} | nft -f -
for from in $(seq 0 250 $(($1 - 1))); do
  for i in $(seq $from $((from + 249))); do
    add s-$i 10.96.$((i / 250)).$((i % 250 + 1))
  done | nft -f -
done
