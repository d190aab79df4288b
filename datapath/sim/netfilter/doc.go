// Package netfilter is the kernel's netfilter on paper: it leads a packet through the
// hooks and tables of an iptables dump as Linux would, with connection tracking,
// address translation, routing and marks.
//
// A [Machine] is the rules of one address family on one [Host]; it never changes. What
// packets leave behind - connections, recent lists, counters - is a [State]. Where the
// kernel would draw, a chooser decides: [Machine.Explore] follows all possible ways with their
// probabilities, [Machine.Send] one of them.
//
// The order of hooks and tables is that of enum nf_ip_hook_priorities
// (include/uapi/linux/netfilter_ipv4.h); what a match or target does is in the file of
// the kernel that its code here names.
package netfilter
