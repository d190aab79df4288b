package noderules

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// timeout is how long a program may take to list the rules: those of 10,000 services take seconds.
const timeout = 30 * time.Second

// ErrNoProgram means that the node lacks the program that lists the rules.
var ErrNoProgram = errors.New("the node has no program")

// List runs a program that lists rules, in the calling thread's network namespace.
func List(ctx context.Context, command ...string) ([]byte, error) {
	name := command[0]
	program := ""
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} { // PATH of users often lacks them
		if found, err := exec.LookPath(dir + name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		return nil, fmt.Errorf("%w %s", ErrNoProgram, name)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var stderr bytes.Buffer
	c := exec.CommandContext(ctx, program, command[1:]...)
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %s", name, cmp.Or(strings.TrimSpace(stderr.String()), err.Error()))
	}
	return out, nil
}

// Read reads the rules of the calling thread's network namespace, its routes to addresses, and its state. Without addresses it
// leaves the rules out, which may be many. It needs CAP_NET_ADMIN. An error is about rules that cannot be read: it is
// [ErrNoProgram] if none of the programs that list rules exists.
func Read(ctx context.Context, to []netip.Addr) (r *Rules, err error) {
	r = new(Rules)
	if r.State, err = readState(to); err != nil || len(to) == 0 {
		return r, err
	}
	nft := false
	switch text, err := List(ctx, strings.Fields(NFTables)...); {
	case err == nil:
		nft = true
		r.Listings = append(r.Listings, Listing{Program: NFTables, Text: string(text)})
	case !errors.Is(err, ErrNoProgram):
		return r, err
	}
	for _, program := range []string{"iptables", "ip6tables"} {
		// A node may have rules of both back ends; iptables-save is one of them.
		listed := false
		for _, name := range []string{program + "-nft-save", program + "-legacy-save", program + "-save"} {
			if name == program+"-save" && listed {
				break
			}
			text, err := List(ctx, name, "-c")
			switch {
			case errors.Is(err, ErrNoProgram):
				continue
			case err != nil:
				return r, err
			}
			listed = true
			r.Listings = append(r.Listings, Listing{Program: name, Text: string(text)})
		}
		if !listed && !nft && program == "iptables" {
			return r, fmt.Errorf("%w iptables-save", ErrNoProgram)
		}
	}
	return r, r.readNetwork(to)
}

// readNetwork reads the addresses of all interfaces, and the routes.
func (r *Rules) readNetwork(to []netip.Addr) error {
	host, err := hostnet.Open()
	if err != nil {
		return err
	}
	defer host.Close()
	addresses, err := host.InterfaceAddresses()
	if err != nil {
		return err
	}
	for _, a := range addresses {
		r.Network.AddAddress(a.Interface, a.Address)
	}
	routes := host.NewCache()
	for _, a := range to {
		if r.Network.Has(a) {
			continue
		}
		// Without a route, packets to the address end before any rule.
		if out, err := routes.OutInterface(a); err == nil {
			r.Network.Routes = append(r.Network.Routes, netfilter.Route{Destination: netip.PrefixFrom(a, a.BitLen()), Interface: out})
		}
	}
	return nil
}
