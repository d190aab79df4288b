package iptables

// modules are the matches that this package knows, by the name behind -m.
var modules = byName([]*module{
	commentModule, tcpModule, udpModule, sctpModule, icmpModule, icmp6Module, multiportModule,
	conntrackModule, stateModule, markModule, connmarkModule, addrtypeModule, statisticModule,
	recentModule, setModule, physdevModule, rpfilterModule, limitModule, hashlimitModule, ownerModule,
	macModule, iprangeModule, lengthModule, socketModule, pkttypeModule, nfacctModule,
	ttlModule, hlModule, tosModule, dscpModule, segmentSizeModule, routingHeaderModule, policyModule, quotaModule,
	connlimitModule, connbytesModule, helperModule, timeModule, stringModule, u32Module, bpfModule, cpuModule,
}, func(m *module) string { return m.name })

// targets are the targets that this package knows, by the name behind -j.
var targets = byName([]*extension{
	verdictTarget("ACCEPT", Accept), verdictTarget("DROP", Drop), verdictTarget("RETURN", Return),
	rejectTarget, logTarget, setMarkTarget, setConnmarkTarget, dnatTarget, snatTarget, masqueradeTarget,
	redirectTarget, netmapTarget, checksumTarget, tcpmssTarget, ctTarget, notrackTarget, nfqueueTarget,
	tproxyTarget, nflogTarget, setTOSTarget, setDSCPTarget, classifyTarget, auditTarget, traceTarget,
	setTTLTarget, setHLTarget, tarpitTarget,
}, func(t *extension) string { return t.name })

// otherTargets are the names of other existing targets (iptables' extensions, and xtables-addons):
// these are no missing chains.
var otherTargets = map[string]bool{
	"CLUSTERIP": true, "CONNSECMARK": true, "DNPT": true, "ECN": true, "HMARK": true,
	"IDLETIMER": true, "LED": true, "MIRROR": true, "QUEUE": true, "RATEEST": true, "SAME": true,
	"SECMARK": true, "SET": true, "SNPT": true, "SYNPROXY": true, "TCPOPTSTRIP": true, "TEE": true,
	"ULOG":    true,
	"ACCOUNT": true, "CHAOS": true, "DELUDE": true, "DHCPMAC": true, "DNETMAP": true, "ECHO": true,
	"IPMARK": true, "LOGMARK": true, "PROTO": true, "SYSRQ": true,
}

func byName[T any](all []T, name func(T) string) map[string]T {
	m := make(map[string]T, len(all))
	for _, x := range all {
		m[name(x)] = x
	}
	return m
}
