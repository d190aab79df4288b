package hostnet

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// SourceRules are the host's own rules of nat POSTROUTING. They are safe for concurrent use.
type SourceRules interface {
	// Translator makes what one worker uses.
	Translator() SourceTranslator
}

// SourceTranslator applies the host's own rules of nat POSTROUTING to flows that a service
// proxy translates: the rules never see such a flow, because its connection entry binds both
// sides of the translation. It is not safe for concurrent use.
type SourceTranslator interface {
	// Any reports whether there are rules that may translate the source of a flow of the
	// family.
	Any(f decision.Family) bool
	// Translate gives what the rules do to a flow from p that is sent to the endpoint by the
	// interface out. p.InInterface has to be set unless p is Local; mark is the packet's.
	// It allocates nothing, unless the translation is not known.
	Translate(p *decision.Packet, endpoint netip.AddrPort, out string, mark uint32) SourceTranslation
}

// SourceTranslation is what the host's own rules do to the source of a flow.
type SourceTranslation struct {
	// Rule is the rule, as iptables-save prints it; nil: the source stays as it is.
	Rule fmt.Stringer
	// Unknown: a rule decides that cannot be evaluated; the source stays as it is.
	Unknown bool
	// Masquerade: the source becomes an address of the interface that the flow leaves by;
	// else, with a Rule, it becomes Source.
	Masquerade bool
	Source     netip.Addr
	// FirstPort and LastPort bound the source port; 0 and 0: any.
	FirstPort, LastPort uint16
}
