// Command attack measures what floods from forged sources do to ordinary clients of a
// service: with kube-proxy's iptables rules, and with nfqproxy.
package main
