package nftrules

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// verdict is a verdict as a target; nil: the rule goes on.
func (c *compiler) verdict(v nftables.Verdict) (iptables.Target, error) {
	switch v.Kind {
	case nftables.Accept:
		return iptables.Accept, nil
	case nftables.Drop:
		return iptables.Drop, nil
	case nftables.Return:
		return iptables.Return, nil
	case nftables.Continue:
		return nil, nil
	case nftables.Jump, nftables.Goto:
		name := v.Chain
		if name == "" {
			name = c.anonymous(v.Rules)
		}
		if v.Kind == nftables.Jump {
			return iptables.Jump{Chain: name}, nil
		}
		return iptables.Goto{Chain: name}, nil
	}
	return nil, fmt.Errorf("the verdict %s is not supported", v.Kind)
}

// verdicts is a verdict map as the target of a rule; it is an [iptables.Lookup].
type verdicts struct {
	*table
	of nftables.VerdictMap
	c  *compiler
}

func (c *compiler) verdictMap(b *builder, m nftables.VerdictMap) error {
	fields, err := c.fields(m.Key)
	if err != nil {
		return err
	}
	for _, f := range fields {
		switch {
		case f.never:
			return errFamily
		case f.unreadable():
			return fmt.Errorf("%s is not supported", f.name())
		}
		b.needs(f.needs)
	}
	t, err := c.table(m.Data, fields)
	if err != nil {
		return err
	}
	b.target = iptables.NativeTarget{Lookup: &verdicts{t, m, c}}
	return nil
}

func (v *verdicts) Text() string { return nftables.Text(v.of) }

// Find returns the verdict for the packet.
func (v *verdicts) Find(c *iptables.Context) (iptables.Target, fmt.Stringer, rules.Truth) {
	e, truth := v.find(c)
	if truth != rules.True {
		return nil, nil, truth
	}
	if truth = v.runs(c, e); truth != rules.True {
		return nil, nil, truth
	}
	verdict, ok := e.Value.(nftables.Verdict)
	if !ok {
		return nil, nil, rules.Unknown
	}
	t, err := v.c.verdict(verdict)
	if err != nil {
		return nil, nil, rules.Unknown
	}
	if v.declared == nil {
		return t, nil, rules.True
	}
	return t, found{e, v.table}, rules.True
}

func (v *verdicts) WhyNot(c *iptables.Context) string {
	return fmt.Sprintf("%s has nothing for %s", v.name(), v.described(c))
}

// Translates is false.
func (v *verdicts) Translates() bool { return false }

// Chains are those of all elements.
func (v *verdicts) Chains() []string {
	names := make([]string, 0, len(v.elements))
	for i := range v.elements {
		if verdict, ok := v.elements[i].Value.(nftables.Verdict); ok && verdict.Chain != "" {
			names = append(names, verdict.Chain)
		}
	}
	return names
}

// rejections are the replies to rejected packets, of IPv4 and of IPv6, by the words of nft. Those of "icmpx" are for both families
// (nf_tables.h, enum nft_reject_inet_code).
var rejections = map[string]map[string][2]iptables.RejectWith{
	"icmpx": {
		"no-route": {"icmp-net-unreachable", "icmp6-no-route"}, "port-unreachable": {"icmp-port-unreachable", "icmp6-port-unreachable"},
		"host-unreachable": {"icmp-host-unreachable", "icmp6-addr-unreachable"}, "admin-prohibited": {"icmp-admin-prohibited", "icmp6-adm-prohibited"},
	},
	"icmp": {
		"net-unreachable": {"icmp-net-unreachable"}, "host-unreachable": {"icmp-host-unreachable"}, "prot-unreachable": {"icmp-proto-unreachable"},
		"port-unreachable": {"icmp-port-unreachable"}, "net-prohibited": {"icmp-net-prohibited"}, "host-prohibited": {"icmp-host-prohibited"},
		"admin-prohibited": {"icmp-admin-prohibited"},
	},
	"icmpv6": {
		"no-route": {1: "icmp6-no-route"}, "admin-prohibited": {1: "icmp6-adm-prohibited"}, "addr-unreachable": {1: "icmp6-addr-unreachable"},
		"port-unreachable": {1: "icmp6-port-unreachable"}, "policy-fail": {1: "icmp6-policy-fail"}, "reject-route": {1: "icmp6-reject-route"},
	},
}

// reject compiles a rejection.
func (c *compiler) reject(b *builder, r nftables.Reject) error {
	with, code := r.With, "port-unreachable"
	if with == "tcp reset" {
		b.needsFirst(protoTCP)
		b.target = iptables.Reject{With: iptables.TCPReset}
		return nil
	}
	if with == "" && b.frameType {
		// nft lists a reject with icmp or icmpv6 without its code behind a condition on the frame's type, which it lists as raw bytes then
		// (stmt_reject_postprocess, src/netlink_delinearize.c).
		b.target = iptables.Reject{With: iptables.UnknownUnreachable}
		return nil
	}
	if with == "" {
		with = "icmpx"
	}
	if r.Code != nil {
		code = nftables.Text(r.Code)
	}
	family := 0
	if !c.is4() {
		family = 1
	}
	known, ok := rejections[with][code]
	switch {
	case with == "icmp" && !c.is4() || with == "icmpv6" && c.is4():
		b.neverFirst(nftables.Text(r), c.otherFamily())
	case !ok || known[family] == "":
		return fmt.Errorf("the code %s is not known", code)
	default:
		b.target = iptables.Reject{With: known[family]}
	}
	return nil
}
