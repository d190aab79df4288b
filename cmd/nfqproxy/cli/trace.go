package cli

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/paper/trace"
)

// traceFlags are the flags of nfqproxy trace.
type traceFlags struct {
	rules  []string
	node   string
	sets   string
	ipvs   string
	host   hostFlags
	packet packetFlags
	start  string
	time   string
	assume string
	seed   uint64
	reply  bool
	later  bool
	walk   text.Walk
	output string
}

func newTraceCommand() *cobra.Command {
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace (--rules FILE | --node BUNDLE) --protocol P --source A[:PORT] --destination A[:PORT]",
		Short: "Trace a packet through the rules of a host",
		Long: `Trace a packet through the rules of a host (iptables-save, ip6tables-save, nft list
ruleset or nft -j list ruleset), in the kernel's order: hooks by priority, connection
tracking, routing and translation. Where a rule matches at random, nfqproxy follows every
branch, with its probability.

A host may have rules of both iptables back ends and of nftables: give each in its own
file. With --node, the rules, sets, addresses, routes and sysctls come from a bundle of
nfqproxy collect. Listings (iptables -L) work, too, if they are complete enough.
Addresses, routes and devices come from flags, from files with the output of "ip -j addr"
and "ip -j route", or from guesses based on the rules; the output lists the guesses.
Routing rules (ip rule) are not supported, and rp_filter only of a bundle. With --ipvs,
packets to virtual servers go on to a real server, as documented for IPVS: this is not
checked against a kernel.`,
		Example: `  iptables-save > node.rules
  nfqproxy trace --rules node.rules --protocol udp --source 10.244.1.2 --destination 10.96.0.10:53
  nfqproxy trace --rules node.rules --protocol tcp --source 192.0.2.10 --destination 172.20.0.2:30080 --reply
  nft list ruleset | nfqproxy trace --rules - --protocol tcp --source 10.244.1.2 --destination 10.96.0.1:443
  nfqproxy trace --rules nat.listing --start KUBE-SERVICES --protocol tcp --source 10.244.1.2 --destination 10.96.0.1:443`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Flags(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.rules, "rules", nil, "output of iptables-save, ip6tables-save, iptables -S or -L, or of nft list ruleset; - for standard input; may be repeated: all rules of the host")
	flags.Var(nodeValue{name: &f.node}, "node", bundleUsage)
	flags.StringVar(&f.sets, "sets", "", "output of ipset save or ipset list, for rules with -m set")
	flags.StringVar(&f.ipvs, "ipvs", "", "output of ipvsadm -Sn or ipvsadm -Ln: virtual servers of IPVS")
	f.packet.add(flags)
	flags.BoolVar(&f.reply, "reply", false, "also show the path of the reply")
	flags.BoolVar(&f.later, "later", false, "also show the path of the reply, and then that of the client's next packet")
	flags.StringVar(&f.start, "start", "", "start in this chain: NAME or TABLE/NAME")
	flags.StringVar(&f.time, "time", "", "for rules with -m time: the time in UTC, like 2026-01-31T08:30:00 (default: now)")
	f.host.add(flags)
	flags.StringVar(&f.assume, "assume", "", "match or no-match: what to assume of unsupported rules")
	flags.Uint64Var(&f.seed, "seed", 0, "seed: follow one random branch, reproducibly (default: follow all branches)")
	walkFlag(cmd, &f.walk, "", text.WalkWords)
	outputFlag(cmd, &f.output)
	return cmd
}

func (f *traceFlags) run(given *pflag.FlagSet, stdin io.Reader, stdout, stderr io.Writer) error {
	in, err := newRuleInput(stdin, f.rules, f.node)
	if err != nil {
		return err
	}
	assume, ok := map[string]netfilter.Assumption{"": netfilter.AssumeNothing, "match": netfilter.AssumeMatch, "no-match": netfilter.AssumeNoMatch}[f.assume]
	if !ok {
		return fmt.Errorf("--assume %q: want match or no-match", f.assume)
	}
	p, err := f.packet.packet(given)
	if err != nil {
		return err
	}
	when, err := parseTime(f.time)
	if err != nil {
		return err
	}
	family := iptables.IPv4
	if p.Destination.Addr().Is6() {
		family = iptables.IPv6
	}
	all, err := in.dumps(stderr, family)
	if err != nil {
		return err
	}
	dumps, err := in.of(all, family)
	if err != nil {
		return err
	}
	sets, err := in.sets(f.sets)
	if err != nil {
		return err
	}
	known, err := in.host(&f.host, family, stderr)
	if err != nil {
		return err
	}
	if err := f.knownDevice(known); err != nil {
		return err
	}
	servers, err := in.servers(stderr, f.ipvs)
	if err != nil {
		return err
	}
	var notes []netfilter.Guess
	if servers != nil {
		notes = known.AddVirtualServers(servers, family)
	}
	// At the same time: a node may have half a million rules.
	var m *netfilter.Machine
	var compiled sync.WaitGroup
	compiled.Go(func() {
		m, err = netfilter.New(dumps, sets, known, netfilter.Options{Assume: assume, AllRules: f.walk == text.WalkAll, IPVS: servers})
	})
	host, guesses := netfilter.GuessHost(dumps, known, &p)
	if from := p.Source.Addr(); !p.Local && f.packet.inInterface == "" && (from.IsLoopback() || host.Has(from)) {
		p.Local, p.InInterface, p.Owner = true, "", new(iptables.SocketOwner)
		notes = append(notes, netfilter.Guess{Text: fmt.Sprintf("the host itself sends the packet, since %s is its own address (otherwise give --in-interface)", from)})
		host, guesses = netfilter.GuessHost(dumps, known, &p)
	}
	compiled.Wait()
	if err != nil {
		return fmt.Errorf("%s %s: %w", in.flag(), filesOf(dumps), err)
	}
	m = m.On(host)
	guesses = slices.Concat(sharedHost(dumps), notes, guesses)
	q := &trace.Question{Rules: filesOf(dumps), Packet: p, Start: f.start, Reply: f.reply, Later: f.later, Notes: guesses, Listing: listingOf(dumps), Time: when}
	if mode, proof := proxymode.ModeOf(dumps); mode == proxymode.ModeUserspace {
		q.Proxy = fmt.Sprintf("the service proxy is %s (%s): rules lead to ports of kube-proxy itself, which selects the endpoints", mode, proof)
	} else if mode.IPVS() && servers == nil {
		q.Proxy = fmt.Sprintf("the service proxy is %s (%s): the rules do not show what it translates; ipvsadm -Sn does (--ipvs)", mode, proof)
	} else if plugin, proof := proxymode.EBPF(dumps); plugin != "" {
		q.Proxy = fmt.Sprintf("eBPF programs of %s (%s) may translate, drop or redirect packets before the rules, which do not show it", plugin, proof)
	}
	if given.Changed("seed") {
		q.Rand = rand.New(rand.NewPCG(f.seed, 0))
	}
	t, err := trace.Run(m, q)
	if err != nil {
		return err
	}
	if f.output != "text" {
		return writeItem(stdout, f.output, t)
	}
	_, err = io.WriteString(stdout, text.StyleFor(stdout).Trace(t, f.walk))
	return err
}

// sharedHost says that dumps of both back ends in one file are taken for those of one host, if the file does not show it.
func sharedHost(dumps []*iptables.Dump) (notes []netfilter.Guess) {
	for i, d := range dumps {
		for _, other := range dumps[:i] {
			if other.File == d.File && other.Backend != d.Backend && (d.Host == "" || other.Host == "") {
				claim := fmt.Sprintf("%s and %s are of one host", dumpName(other, dumps), dumpName(d, dumps))
				notes = append(notes, netfilter.Guess{Text: claim + ", whose kernel evaluates both: if they are of two hosts, give those of one", Claim: claim})
			}
		}
	}
	return notes
}

// listingOf joins what the dumps lack; nil: they are complete.
func listingOf(dumps []*iptables.Dump) *iptables.Listing {
	var all *iptables.Listing
	for _, d := range dumps {
		if d.Listing == nil {
			continue
		}
		if all == nil {
			all = new(iptables.Listing)
		}
		for _, n := range d.Listing.Incomplete {
			if len(dumps) > 1 {
				n = iptables.Note{Text: d.File + ", " + n.String()}
			}
			all.Incomplete = append(all.Incomplete, n)
		}
	}
	return all
}

// parseTime reads a time in UTC; empty is now.
func parseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Now().UTC(), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("--time %q: want a time in UTC, like 2026-01-31T08:30:00", text)
}

// knownDevice rejects a device that is not in --host, which is most likely a typo.
func (f *traceFlags) knownDevice(known *netfilter.Host) error {
	in := f.packet.inInterface
	if in == "" || len(f.host.files) == 0 && f.node == "" || len(known.Interfaces) == 0 {
		return nil
	}
	var names []string
	for _, i := range known.Interfaces {
		if i.Name == in {
			return nil
		}
		names = append(names, i.Name)
	}
	by := "--host"
	if len(f.host.files) == 0 {
		by = "--node"
	}
	return fmt.Errorf("--in-interface %s: the host has %s, by %s", in, strings.Join(names, ", "), by)
}

// readSets reads the output of ipset save or list from a file; without a name there are no sets.
func readSets(name string) (map[string]*iptables.Set, error) {
	if name == "" {
		return nil, nil
	}
	return readPastedFile("--sets", name, iptables.ParseSets, iptables.IsSetLine)
}

// packetFlags are a packet of a trace.
type packetFlags struct {
	protocol, source, destination string
	inInterface                   string
	local                         bool
	mark                          string
	tcpFlags                      string
	icmpType                      string
	uid, gid                      uint32
	mac                           string
	length                        uint16
	tos, ttl                      uint8
	mss                           uint16
	payload                       string
}

func (f *packetFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.protocol, "protocol", "", "tcp, udp, sctp, icmp, icmpv6, or a number")
	flags.StringVar(&f.source, "source", "", "source of the packet; the port is optional")
	flags.StringVar(&f.destination, "destination", "", "destination of the packet")
	flags.StringVar(&f.inInterface, "in-interface", "", "input device of the packet (default: guessed from its source)")
	flags.BoolVar(&f.local, "local", false, "the host itself sends the packet; the source is optional")
	flags.StringVar(&f.tcpFlags, "tcp-flags", "SYN", "TCP flags: SYN, or a list like ACK,FIN")
	flags.StringVar(&f.icmpType, "icmp-type", "", "ICMP type: TYPE or TYPE/CODE, in numbers (default: echo request)")
	flags.StringVar(&f.mark, "mark", "0", "packet mark")
	flags.Uint32Var(&f.uid, "uid", 0, "with --local: user ID of the sender")
	flags.Uint32Var(&f.gid, "gid", 0, "with --local: group ID of the sender")
	flags.StringVar(&f.mac, "mac", "", "source address of the Ethernet frame")
	flags.Uint16Var(&f.length, "length", 60, "length of the packet with its IP header, in bytes")
	flags.Uint8Var(&f.tos, "tos", 0, "type of service (TOS)")
	flags.Uint8Var(&f.ttl, "ttl", 64, "time to live (TTL), or hop limit")
	flags.Uint16Var(&f.mss, "mss", 1460, "maximum segment size in a TCP SYN; 0: no option")
	flags.StringVar(&f.payload, "payload", "", "payload text, for rules with -m string or -m u32 (default: none with TCP, else unknown)")
}

// defaultSourcePort is the source port of packets without one.
const defaultSourcePort = 40000

func (f *packetFlags) packet(given *pflag.FlagSet) (iptables.Packet, error) {
	var missing []string
	for _, name := range []string{"protocol", "source", "destination"} {
		if !given.Changed(name) && (name != "source" || !f.local) {
			missing = append(missing, "--"+name)
		}
	}
	if len(missing) > 0 {
		return iptables.Packet{}, fmt.Errorf("a packet needs --protocol, --source (unless --local) and --destination; missing: %s", strings.Join(missing, ", "))
	}
	if !f.local && (given.Changed("uid") || given.Changed("gid")) {
		return iptables.Packet{}, errors.New("--uid and --gid require --local: they name the sender on the host")
	}
	if f.local && f.inInterface != "" {
		return iptables.Packet{}, errors.New("--local and --in-interface cannot be used together: the host sends the packet, or it arrives on a device")
	}
	p := iptables.Packet{Local: f.local, InInterface: f.inInterface, Length: f.length, TOS: f.tos, TTL: f.ttl}
	var err error
	if p.Protocol, err = parseProtocol(f.protocol); err != nil {
		return p, err
	}
	portNeeded := iptables.HasPorts(p.Protocol)
	if p.Destination, err = parseEnd("--destination", f.destination, portNeeded, 0); err != nil {
		return p, err
	}
	if f.source == "" {
		p.Source = netip.AddrPortFrom(unspecified(p.Destination.Addr()), 0)
		if portNeeded {
			p.Source = netip.AddrPortFrom(p.Source.Addr(), defaultSourcePort)
		}
	} else if p.Source, err = parseEnd("--source", f.source, portNeeded, defaultSourcePort); err != nil {
		return p, err
	}
	if p.Source.Addr().Is4() != p.Destination.Addr().Is4() {
		return p, fmt.Errorf("--source %s and --destination %s are of different address families", f.source, f.destination)
	}
	if is6 := p.Destination.Addr().Is6(); p.Protocol == 1 && is6 || p.Protocol == 58 && !is6 {
		return p, fmt.Errorf("--protocol %s and --destination %s: want icmp with IPv4, icmpv6 with IPv6", f.protocol, f.destination)
	}
	mark, err := strconv.ParseUint(f.mark, 0, 32)
	if err != nil {
		return p, fmt.Errorf("--mark %q: want a number, like 0x4000", f.mark)
	}
	p.Mark = uint32(mark)
	if f.local {
		p.Owner = &iptables.SocketOwner{UID: f.uid, GID: f.gid}
	}
	if f.mac != "" {
		m, err := iptables.ParseMAC(f.mac)
		if err != nil {
			return p, fmt.Errorf("--mac: %w", err)
		}
		p.MAC = &m
	}
	f.noteAssumptions(&p, given)
	return p, f.layer4(&p)
}

// noteAssumptions notes the assumed properties of the packet: those that no flag set.
func (f *packetFlags) noteAssumptions(p *iptables.Packet, given *pflag.FlagSet) {
	for _, s := range []struct {
		fact  iptables.Facts
		flags []string
	}{
		{iptables.FactMAC, []string{"mac"}}, {iptables.FactOwner, []string{"uid", "gid"}}, {iptables.FactTTL, []string{"ttl"}}, {iptables.FactTOS, []string{"tos"}},
		{iptables.FactLength, []string{"length", "payload"}}, {iptables.FactOptions, []string{"mss"}},
	} {
		if !slices.ContainsFunc(s.flags, given.Changed) {
			p.Supposed |= s.fact
		}
	}
	if f.payload == "" {
		return
	}
	p.Payload = []byte(f.payload)
	if !given.Changed("length") {
		p.Length = uint16(min(0xffff, headerLength(p)+len(p.Payload)))
	}
}

// headerLength is the length of the packet's headers without options, in bytes.
func headerLength(p *iptables.Packet) int {
	length := 20
	if p.Destination.Addr().Is6() {
		length = 40
	}
	if p.Protocol == 6 {
		return length + 20
	}
	return length + 8
}

// layer4 fills in what only one protocol has.
func (f *packetFlags) layer4(p *iptables.Packet) error {
	switch p.Protocol {
	case 6:
		flags, err := iptables.ParseTCPFlags(f.tcpFlags)
		if err != nil {
			return fmt.Errorf("--tcp-flags: %w", err)
		}
		p.Flags = flags
		if flags == iptables.SYN && f.mss > 0 {
			p.TCPOptions, p.MSS = []uint8{2, 4, 8, 3}, f.mss // as Linux sends them
		}
	case 132:
		p.Chunks = []iptables.ChunkType{{Type: 1}} // INIT
	case 1, 58:
		p.ICMPType = map[uint8]uint8{1: 8, 58: 128}[p.Protocol]
		p.ICMPID = 1
		if f.icmpType == "" {
			return nil
		}
		typ, code, _ := strings.Cut(f.icmpType, "/")
		t, err1 := strconv.ParseUint(typ, 10, 8)
		c, err2 := strconv.ParseUint("0"+code, 10, 8)
		if err1 != nil || err2 != nil {
			return fmt.Errorf("--icmp-type %q: want TYPE or TYPE/CODE in numbers, like 3/4", f.icmpType)
		}
		p.ICMPType, p.ICMPCode = uint8(t), uint8(c)
	}
	return nil
}

func parseProtocol(text string) (uint8, error) {
	n, ok := iptables.ParseProtocol(text)
	if !ok || n == 0 {
		return 0, fmt.Errorf("--protocol %q: want tcp, udp, sctp, icmp, icmpv6, another name of /etc/protocols, or a number", text)
	}
	return n, nil
}

// parseEnd reads an address, with a port if the protocol has ports; without one it is
// the one given, unless that is 0.
func parseEnd(flag, text string, ported bool, port uint16) (netip.AddrPort, error) {
	alone := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		alone = text[1 : len(text)-1]
	}
	a, err := netip.ParseAddr(alone)
	end := netip.AddrPortFrom(a, port)
	bare := err == nil
	if !bare {
		end, err = netip.ParseAddrPort(text)
	}
	a = end.Addr()
	switch {
	case err != nil && ported:
		return end, fmt.Errorf("%s %q: want an address and a port, like 10.96.0.10:53 or [fd00::10]:53", flag, text)
	case err != nil:
		return end, fmt.Errorf("%s %q: want an address", flag, text)
	case a.Zone() != "":
		return end, fmt.Errorf("%s %s: rules do not match zones: give %s, and the device with --in-interface or --route", flag, text, a.WithZone(""))
	case bare && ported && port == 0:
		return end, fmt.Errorf("%s %s: the port is missing: want %s", flag, text, netip.AddrPortFrom(a, 80))
	case !bare && !ported:
		return end, fmt.Errorf("%s %s: the protocol has no ports: give %s", flag, text, a)
	case !ported:
		return netip.AddrPortFrom(a.Unmap(), 0), nil
	}
	return netip.AddrPortFrom(a.Unmap(), end.Port()), nil
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
