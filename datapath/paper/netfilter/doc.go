// Package netfilter simulates the kernel's netfilter: it follows a packet through the hooks and
// tables of an iptables dump as Linux does, with connection tracking, address translation, routing
// and marks.
//
// A [Machine] is the rules of one address family on one [Host]; it is immutable. The state that
// packets leave - connections, recent lists, counters - is a [State]. Where the kernel would
// choose at random, a chooser decides: [Machine.Explore] follows all possible ways with their
// probabilities, [Machine.Send] one of them.
//
// The order of hooks and tables is that of enum nf_ip_hook_priorities
// (include/uapi/linux/netfilter_ipv4.h); the code of each match and target names the kernel's file
// with its effect.
package netfilter
