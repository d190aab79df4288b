package daemon

import (
	"net"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/nfqproxy/nfqproxy/control/live/confine"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// confine confines the process, before it reads objects and serves addresses.
func (p *process) confine() {
	if p.flags.confine {
		for _, a := range p.flags.flowAPI.list() {
			_ = a.MakeDirectory() // Listen reports it, too
		}
		p.confinement = confine.Apply(p.confinementConfig())
	} else {
		p.confinement = confine.Unconfined("--confine=false")
	}
	p.log.Info("confinement: " + p.confinement.String())
}

// confinementConfig is what the daemon does after its start.
func (p *process) confinementConfig() confine.Config {
	f := p.flags
	c := confine.Config{
		Capabilities: []observe.Capability{{Name: "CAP_NET_ADMIN", Use: "nftables, netfilter queues, connection entries, sysctls under net"}},
		Reads:        slices.Clone(p.clientUses.Files),
		// The settings of connection tracking, and route_localnet; see tune.
		Writes: []string{"/proc/sys/net", hostSysctls + "/proc/sys/net", "/sys/module/nf_conntrack/parameters/hashsize"},
		// The lock of iptables, xtables.lock.
		Locks:   []string{"/run"},
		Program: p.clientUses.Program,
	}
	if f.observe {
		c.Capabilities[0].Use = "reading connection entries, their events, the names of chains, and changes of rules"
		c.Writes, c.Locks = nil, nil
		if f.accounting {
			c.Capabilities[0].Use += "; sysctls of connection tracking"
			c.Writes = []string{"/proc/sys/net/netfilter", hostSysctls + "/proc/sys/net/netfilter"}
		}
	}
	for _, file := range []string{f.flowAPI.tokenFile, f.flowAPI.tlsCert, f.flowAPI.tlsKey} {
		if file != "" {
			c.Reads = append(c.Reads, file)
		}
	}
	if f.stateDir != "" {
		c.Files = append(c.Files, f.stateDir)
	}
	addresses := []string{p.cfg.HealthzBindAddress, p.cfg.MetricsBindAddress}
	for _, a := range f.flowAPI.list() {
		if path, ok := observe.SocketPath(a.Address); ok {
			c.Sockets = append(c.Sockets, filepath.Dir(path))
		} else {
			addresses = append(addresses, a.Address)
		}
	}
	if a := lowPort(firstUserPort(), addresses...); a != "" {
		c.Capabilities = append(c.Capabilities, observe.Capability{Name: "CAP_NET_BIND_SERVICE", Use: "listening on " + a})
	}
	return c
}

// lowPort is the first of the addresses with a port that a capability is needed for; empty: there is none.
func lowPort(first uint16, addresses ...string) string {
	for _, a := range addresses {
		_, port, err := net.SplitHostPort(a)
		if n, wrong := strconv.ParseUint(port, 10, 16); err == nil && wrong == nil && n > 0 && uint16(n) < first {
			return a
		}
	}
	return ""
}

// firstUserPort is the first port for which no capability is needed.
func firstUserPort() uint16 {
	if n, err := (proxyconfig.KernelFiles{}).Read("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil {
		return uint16(n) // the kernel takes no other value
	}
	return 1024
}
