package bundle

// The files of a bundle. Any of them may be missing: the notes say why.
const (
	FlowFile     = "flow.json"       // the record, at the end, with its steps and history (datapath/flow/SCHEMA.md)
	ServiceFile  = "service.json"    // the service port with its endpoints and counts (flow API: Services)
	TablesFile   = "tables.json"     // the service table of each node (flow API: TableList)
	StatusFile   = "status.json"     // the daemon of each node (flow API: StatusList)
	EntriesFile  = "conntrack.json"  // the connection entries of the client and the service, see Entry
	PacketsFile  = "packets.pcapng"  // packets between the client, the service and the endpoint, by interface
	RulesFile    = "iptables.rules"  // output of iptables-save, where the back ends have no programs of their own
	Rules6File   = "ip6tables.rules" // output of ip6tables-save, likewise
	NFTablesFile = "nftables.rules"  // output of nft -a list ruleset
	SetsFile     = "ipset-save.txt"
	AddrFile     = "addr.json"
	LinkFile     = "link.json"
	SysctlsFile  = "sysctls.txt" // lines "net/ipv4/ip_forward = 1"
	ProxyArgs    = "kube-proxy.args"
	ProxyConfig  = "kube-proxy.conf"
)

// about describes the files that the script writes, by name.
var about = map[string]string{
	"iptables-legacy.rules":  "output of iptables-legacy-save",
	"iptables-nft.rules":     "output of iptables-nft-save",
	RulesFile:                "output of iptables-save",
	"ip6tables-legacy.rules": "output of ip6tables-legacy-save",
	"ip6tables-nft.rules":    "output of ip6tables-nft-save",
	Rules6File:               "output of ip6tables-save",
	NFTablesFile:             "output of nft list ruleset",
	"nftables.json":          "output of nft -j list ruleset",
	"ipvsadm-save.txt":       "virtual servers of IPVS: ipvsadm -Sn",
	"ipvsadm-stats.txt":      "counters of IPVS: ipvsadm -Ln --stats",
	SetsFile:                 "output of ipset save",
	AddrFile:                 "addresses: ip -j addr",
	"addr.txt":               "addresses: ip addr",
	LinkFile:                 "devices: ip -j -d link",
	"link.txt":               "devices: ip link",
	"qdisc.txt":              "queueing disciplines of devices: tc qdisc",
	"route4.json":            "routes of all tables: ip -j -4 route",
	"route4.txt":             "routes of all tables: ip -4 route",
	"route6.json":            "routes of all tables: ip -j -6 route",
	"route6.txt":             "routes of all tables: ip -6 route",
	"rule4.json":             "routing rules: ip -j -4 rule",
	"rule4.txt":              "routing rules: ip -4 rule",
	"rule6.json":             "routing rules: ip -j -6 rule",
	"rule6.txt":              "routing rules: ip -6 rule",
	"neigh4.json":            "neighbours: ip -j -4 neigh",
	"neigh4.txt":             "neighbours: ip -4 neigh",
	"neigh6.json":            "neighbours: ip -j -6 neigh",
	"neigh6.txt":             "neighbours: ip -6 neigh",
	"conntrack4.txt":         "connection entries of IPv4: conntrack -L",
	"conntrack6.txt":         "connection entries of IPv6: conntrack -L",
	"conntrack-stats.txt":    "counters of connection tracking: conntrack -S",
	SysctlsFile:              "sysctls, as the kernel has them",
	"versions.txt":           "versions of the kernel, the distribution and the programs",
	ProxyArgs:                "kube-proxy's command line, a word a line",
	ProxyConfig:              "kube-proxy's configuration file",
}
