package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/replay"
)

// ruleDecider makes a decider of the dumps that --rules names.
func (f *replayFlags) ruleDecider(draws *rand.Rand) (replay.Decider, error) {
	if err := f.checkRules(); err != nil {
		return nil, err
	}
	host, place, err := replayHost(f.addresses)
	if err != nil {
		return nil, err
	}
	rules := replay.Rules{Machines: make(map[decision.Family]*netfilter.Machine), Place: place, Steps: f.steps}
	for _, name := range f.rules {
		dump, err := readDump(name)
		if err != nil {
			return nil, err
		}
		family := decision.IPv4
		if dump.Family == iptables.IPv6 {
			family = decision.IPv6
		}
		if rules.Machines[family] != nil {
			return nil, fmt.Errorf("--rules %s: there are rules of %s already: give one dump of each family", name, family)
		}
		machine, err := netfilter.New(dump, nil, host, netfilter.Options{})
		if err != nil {
			return nil, fmt.Errorf("--rules %s: %s", name, oneLine(err))
		}
		rules.Machines[family] = machine
	}
	return replay.ByRules(rules, draws), nil
}

// checkRules says which flag tells of the node what the rules of a dump tell by themselves.
func (f *replayFlags) checkRules() (err error) {
	var of tableFlags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	of.addOptional(flags)
	flags.VisitAll(func(flag *pflag.Flag) {
		if err == nil && f.given(flag.Name) {
			err = fmt.Errorf("--%s goes with --objects; with --rules all is in the dump but the node's addresses: give these by --address", flag.Name)
		}
	})
	return err
}

func readDump(name string) (*iptables.Dump, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--rules: %w", err)
	}
	defer file.Close()
	dump, err := iptables.Parse(file, iptables.Options{})
	if err != nil {
		return nil, fmt.Errorf("--rules %s: %s", name, oneLine(err))
	}
	if len(dump.Tables) == 0 {
		return nil, fmt.Errorf("--rules %s: there are no rules in it: give what iptables-save prints", name)
	}
	return dump, nil
}

// oneLine is the first of several errors, and how many more there are.
func oneLine(err error) string {
	lines := strings.Split(err.Error(), "\n")
	if len(lines) == 1 {
		return lines[0]
	}
	return fmt.Sprintf("%s (and %d more)", lines[0], len(lines)-1)
}

// replayHost is the host of the dumps, as far as it is told: it has the addresses on one
// interface, by which everything comes and goes.
func replayHost(addresses []string) (*netfilter.Host, func(*netfilter.Packet), error) {
	const uplink = "eth0"
	eth0 := netfilter.Interface{Name: uplink}
	for _, text := range addresses {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				return nil, nil, fmt.Errorf("--address %q: want an address with the length of its network, such as 172.20.0.2/16", text)
			}
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		eth0.Addresses = append(eth0.Addresses, netfilter.Address{Prefix: prefix})
	}
	host := &netfilter.Host{
		Interfaces: []netfilter.Interface{
			{Name: "lo", Addresses: []netfilter.Address{
				{Prefix: netip.MustParsePrefix("127.0.0.1/8"), Narrow: true}, {Prefix: netip.MustParsePrefix("::1/128"), Narrow: true},
			}},
			eth0,
		},
		Routes: []netfilter.Route{
			{Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: uplink},
			{Destination: netip.MustParsePrefix("::/0"), Interface: uplink},
		},
		RouteLocalnet: true, // as kube-proxy sets it
	}
	return host, replay.LocalTo(host, uplink), nil
}
