package hostnet

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// SourceRules are the host's own rules of nat POSTROUTING. They are safe for concurrent use.
type SourceRules interface {
	// Translator makes a translator for one worker.
	Translator() SourceTranslator
}

// SourceTranslator applies the host's own rules of nat POSTROUTING to flows that a service proxy
// translates: such a flow bypasses the rules, because its connection entry fixes both sides of the
// translation. It is not safe for concurrent use.
type SourceTranslator interface {
	// Any reports whether there are rules that may translate the source of a flow of the
	// family.
	Any(f decision.Family) bool
	// Translate returns the effect of the rules on a flow from p that is sent to the endpoint
	// through the interface out. p.InInterface must be set unless p is Local; mark is the
	// packet's. It allocates nothing, unless the translation is unknown.
	Translate(p *decision.Packet, endpoint netip.AddrPort, out string, mark uint32) SourceTranslation
}

// SourceTranslation is the effect of the host's own rules on the source of a flow.
type SourceTranslation struct {
	// Rule is the rule, as iptables or nft prints it; nil: the source is unchanged.
	Rule fmt.Stringer
	// Unknown: the deciding rule cannot be evaluated; the source is unchanged.
	Unknown bool
	// Masquerade: the source becomes an address of the output interface; else, with a Rule, it
	// becomes Source.
	Masquerade bool
	Source     netip.Addr
	// FirstPort and LastPort bound the source port; 0 and 0: any.
	FirstPort, LastPort uint16
}
