package takeover

import (
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

var families = []decision.Family{decision.IPv4, decision.IPv6}

// ownTableName is the nftables table of kube-proxy's mode nftables.
const ownTableName = "kube-proxy"

// tableNames are the tables of iptables that kube-proxy has chains in.
var tableNames = []string{"mangle", "filter", "nat"}

// ownServiceChain is in the names of the chains of single services in the table ownTableName, and in no other
// (isServiceChainName in pkg/proxy/nftables). endpointPrefix is that of the chains of endpoints in iptables' table nat.
const (
	ownServiceChain = "/"
	endpointPrefix  = "KUBE-SEP-"
)

// ownChains are kube-proxy's chains with fixed names, by table, including those of mode ipvs.
var ownChains = map[string][]string{
	"mangle": {"KUBE-PROXY-CANARY"},
	"filter": {
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	},
	"nat": {
		"KUBE-SERVICES", "KUBE-NODEPORTS", postroutingChain, markMasqChain, "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER",
	},
}

const (
	markMasqChain    = "KUBE-MARK-MASQ"
	postroutingChain = "KUBE-POSTROUTING"
)

// ownPrefixes are the prefixes of the chains of single services and endpoints, in table nat.
// KUBE-XLB- is the name of KUBE-EXT- before 1.24.
var ownPrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", endpointPrefix, "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-"}

// hooked are the chains that kube-proxy jumps to from base chains; a jump to any
// other of its chains is not its own.
var hooked = map[string]bool{
	"KUBE-SERVICES": true, "KUBE-EXTERNAL-SERVICES": true, "KUBE-NODEPORTS": true, "KUBE-FORWARD": true, "KUBE-PROXY-FIREWALL": true,
	postroutingChain: true,
	"KUBE-NODE-PORT": true, "KUBE-IPVS-FILTER": true, "KUBE-IPVS-OUT-FILTER": true,
}

// owned reports whether a chain is kube-proxy's.
func owned(table, chain string) bool {
	return slices.Contains(ownChains[table], chain) ||
		table == "nat" && slices.ContainsFunc(ownPrefixes, func(p string) bool { return strings.HasPrefix(chain, p) })
}
