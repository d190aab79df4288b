package cli

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// hostFlags describe the host of a dump, as far as its rules do not.
type hostFlags struct {
	files         []string
	addresses     []string
	routes        []string
	noForwarding  bool
	routeLocalnet bool
}

func (f *hostFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.files, "host", nil, "file with the output of \"ip -j addr\", \"ip -j route\" or \"ip -j neigh\" on the host, or of several of them; may be repeated")
	flags.StringArrayVar(&f.addresses, "address", nil, "an address of the host: [DEVICE=]ADDRESS[/LENGTH], for example eth0=172.20.0.2/16 (default device: guessed); may be repeated")
	flags.StringArrayVar(&f.routes, "route", nil, "a route of the host: NETWORK=DEVICE[,GATEWAY], for example 10.244.2.0/24=eth0,172.20.0.3; may be repeated")
	flags.BoolVar(&f.noForwarding, "no-forwarding", false, "the host does not forward packets")
	flags.BoolVar(&f.routeLocalnet, "route-localnet", false, "net.ipv4.conf.all.route_localnet is 1 (default with kube-proxy's rules)")
}

// load adds what the flags say to a host. The caller guesses the rest.
func (f *hostFlags) load(h *netfilter.Host) (*netfilter.Host, error) {
	h.NoForwarding = h.NoForwarding || f.noForwarding
	h.RouteLocalnet = h.RouteLocalnet || f.routeLocalnet
	for _, name := range f.files {
		more, err := readPastedFile("--host", name, func(in io.Reader) (netfilter.Host, error) {
			more := *h
			more.Interfaces, more.Routes, more.Tables = slices.Clip(h.Interfaces), slices.Clip(h.Routes), maps.Clone(h.Tables)
			err := more.Read(in)
			return more, err
		}, listOfIP.MatchString)
		if err != nil {
			return nil, err
		}
		*h = more
	}
	h.AddSources()
	for _, text := range f.addresses {
		device, address, named := strings.Cut(text, "=")
		if !named {
			device, address = "", text
		}
		p, err := parseAddress(address)
		if err != nil || named && device == "" {
			return nil, fmt.Errorf("--address %q: want [DEVICE=]ADDRESS[/LENGTH], for example eth0=172.20.0.2/16", text)
		}
		h.AddAddress(device, p)
	}
	var routes []netfilter.Route
	for _, text := range f.routes {
		r, err := parseRoute(text)
		if err != nil {
			return nil, err
		}
		routes = append(routes, r)
	}
	if len(routes) > 0 {
		h.Rules = nil // they select other tables
	}
	h.Routes = append(routes, h.Routes...) // of two to the same network, that of the flag
	return h, nil
}

// listOfIP is the first or last line of the output of ip -j.
var listOfIP = regexp.MustCompile(`^\[\s*(\{|\]|$)|\]$`)

// parseAddress reads an address; without a prefix length it is a single address.
func parseAddress(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

func parseRoute(text string) (netfilter.Route, error) {
	wrong := fmt.Errorf("--route %q: want NETWORK=DEVICE[,GATEWAY], for example 10.244.2.0/24=eth0,172.20.0.3", text)
	network, way, ok := strings.Cut(text, "=")
	device, gateway, via := strings.Cut(way, ",")
	if network == "default" {
		network = "0.0.0.0/0"
		if strings.Contains(gateway, ":") {
			network = "::/0"
		}
	}
	p, err := parseAddress(network)
	if !ok || err != nil || device == "" {
		return netfilter.Route{}, wrong
	}
	r := netfilter.Route{Destination: p.Masked(), Interface: device}
	if via {
		if r.Via, err = netip.ParseAddr(gateway); err != nil {
			return netfilter.Route{}, wrong
		}
	}
	return r, nil
}
