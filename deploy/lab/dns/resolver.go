package dns

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Resolver looks names up as the programs of a host do: with its files, its search domains and its servers.
type Resolver struct {
	// Hosts and Config are the contents of /etc/hosts and /etc/resolv.conf.
	Hosts, Config string
	// Families are those in which the host has an address, IPv4 first.
	Families []decision.Family
	// Dial connects from the host.
	Dial func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
}

// Lookup is how a name was resolved.
type Lookup struct {
	// Addresses are in the order in which programs try them; none: there is no such name.
	Addresses []netip.Addr
	// Queries are those that were sent, in their order; none: the name is in /etc/hosts.
	Queries []Query
}

// Query is a query and its answer.
type Query struct {
	Name   string // with its search domain
	Type   string // A or AAAA
	Server netip.AddrPort
	Source netip.AddrPort // that the query was sent from
	// Answer are addresses, or what the server reports (NXDOMAIN, NODATA, REFUSED), or why there is no answer.
	Answer string
}

// queryTimeout is how long a server may take, as in glibc.
const queryTimeout = 5 * time.Second

// errNoServers is the error of hosts that have no DNS.
var errNoServers = errors.New("this host does not use the DNS of the cluster: only pods of a lab with Service kube-system/kube-dns do; use an address")

// Lookup resolves a name. The error is the reason why it has no addresses.
func (r *Resolver) Lookup(ctx context.Context, name string) (l Lookup, err error) {
	if l.Addresses = r.inHosts(name); len(l.Addresses) > 0 {
		return l, nil
	}
	if _, ok := dns.IsDomainName(name); !ok || name == "" || name == "." {
		return l, fmt.Errorf("%q is not a host name", name)
	}
	config, err := dns.ClientConfigFromReader(strings.NewReader(r.Config))
	if err != nil || len(config.Servers) == 0 {
		return l, errNoServers
	}
	var servers []netip.AddrPort
	for _, s := range config.Servers {
		if a, err := netip.ParseAddr(s); err == nil && !a.IsLoopback() { // nothing serves on that of a host
			servers = append(servers, netip.AddrPortFrom(a, 53))
		}
	}
	if len(servers) == 0 {
		return l, errNoServers
	}
	for _, candidate := range config.NameList(name) {
		for _, family := range r.Families {
			q := Query{Name: candidate, Type: dns.TypeToString[types[family]]}
			found, err := r.query(ctx, servers, &q)
			l.Queries = append(l.Queries, q)
			if err != nil && len(l.Addresses) == 0 {
				return l, err
			}
			// glibc prefers the private addresses of IPv6 to those of IPv4 (RFC 3484).
			l.Addresses = append(found, l.Addresses...)
		}
		if len(l.Addresses) > 0 {
			return l, nil
		}
	}
	return l, errors.New("no such name in DNS")
}

// inHosts are the addresses of a name in /etc/hosts.
func (r *Resolver) inHosts(name string) (all []netip.Addr) {
	name = strings.TrimSuffix(name, ".")
	for line := range strings.Lines(r.Hosts) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		a, err := netip.ParseAddr(fields[0])
		if err != nil || !slices.Contains(r.Families, decision.FamilyOf(a)) {
			continue
		}
		for _, known := range fields[1:] {
			if strings.EqualFold(known, name) {
				all = append(all, a)
				break
			}
		}
	}
	return all
}

// types are those of the records with addresses.
var types = map[decision.Family]uint16{decision.IPv4: dns.TypeA, decision.IPv6: dns.TypeAAAA}

// query sends a query to one server after the other until one answers it, and notes the answer.
func (r *Resolver) query(ctx context.Context, servers []netip.AddrPort, q *Query) ([]netip.Addr, error) {
	var last error
	for _, q.Server = range servers {
		m, err := r.exchange(ctx, q)
		if err != nil {
			q.Answer, last = err.Error(), fmt.Errorf("no answer from the DNS server %s: %w", q.Server, err)
			continue
		}
		switch {
		case m.Rcode == dns.RcodeNameError:
			q.Answer = "NXDOMAIN"
			return nil, nil
		case m.Rcode == dns.RcodeRefused:
			q.Answer, last = "REFUSED", errors.New("no such name: "+outside)
			continue
		case m.Rcode != dns.RcodeSuccess:
			q.Answer = dns.RcodeToString[m.Rcode]
			last = fmt.Errorf("the DNS server %s answers %s", q.Server, q.Answer)
			continue
		}
		all := addressesIn(m)
		if len(all) == 0 {
			q.Answer = "NODATA"
			return nil, nil
		}
		texts := make([]string, len(all))
		for i, a := range all {
			texts[i] = a.String()
		}
		q.Answer = strings.Join(texts, " ")
		return all, nil
	}
	return nil, last
}

func addressesIn(m *dns.Msg) (all []netip.Addr) {
	for _, rr := range m.Answer {
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		}
		if a, ok := netip.AddrFromSlice(ip); ok {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// exchange sends a query in a datagram and, if the answer does not fit into one, on a connection.
func (r *Resolver) exchange(ctx context.Context, q *Query) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(q.Name, dns.StringToType[q.Type])
	for _, network := range []string{"udp", "tcp"} {
		answer, err := r.over(ctx, network, m, q)
		if err != nil || !answer.Truncated {
			return answer, err
		}
	}
	return nil, errors.New("the answer is truncated")
}

func (r *Resolver) over(ctx context.Context, network string, m *dns.Msg, q *Query) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	conn, err := r.Dial(ctx, network, q.Server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if a, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
		q.Source = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	client := dns.Client{Timeout: queryTimeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: conn})
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // without the addresses: the query has them, and errors of one kind are counted
	}
	return answer, err
}

// Identify sends a query for a name's TXT record on a connection, and returns the identity of the server that answers,
// as given to [NewServer].
func Identify(ctx context.Context, conn net.Conn, name string) ([]byte, error) {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeTXT).SetEdns0(maxDatagram, false)
	q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
	// The connection's own deadline, or the context's end, closes it.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	c := &dns.Conn{Conn: conn, UDPSize: maxDatagram}
	if err := c.WriteMsg(q); err != nil {
		return nil, err
	}
	r, err := c.ReadMsg()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	if o := r.IsEdns0(); o != nil {
		for _, option := range o.Option {
			if id, ok := option.(*dns.EDNS0_NSID); ok {
				return hex.DecodeString(id.Nsid)
			}
		}
	}
	return nil, fmt.Errorf("the DNS server answers %s without an identifier", dns.RcodeToString[r.Rcode])
}
