package proxyconfig

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Keywords of nodePortAddresses.
const (
	keywordPrimary   = "primary"
	keywordLocalhost = "localhost"
	keywordAll       = "all"
)

// GateExternalIPs is the only feature gate of kube-proxy that nfqproxy has: with false, the spec.externalIPs of Services
// have no effect. Kubernetes plans to make that its default (KEP-5707).
const GateExternalIPs = "AllowServiceExternalIPs"

// reader turns fields into plain values and keeps what is wrong with them.
type reader struct{ errs []error }

func (r *reader) fail(field, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

// honoured returns the honoured fields of a configuration with all defaults filled in, and all that is
// wrong with it by kube-proxy's own rules (pkg/proxy/apis/config/validation).
func honoured(c *object) (Config, []error) {
	r := new(reader)
	config := Config{
		Node:                r.node(c),
		ClientConnection:    c.ClientConnection,
		ConfigSyncPeriod:    r.period("configSyncPeriod", c.ConfigSyncPeriod, time.Nanosecond),
		HealthzBindAddress:  r.hostPort("healthzBindAddress", c.HealthzBindAddress),
		MetricsBindAddress:  r.hostPort("metricsBindAddress", c.MetricsBindAddress),
		BindAddressHardFail: c.BindAddressHardFail,
		EnableProfiling:     c.EnableProfiling,
		OOMScoreAdj:         r.number("oomScoreAdj", *c.OOMScoreAdj, -1000, 1000),
		Conntrack: Conntrack{
			MaxPerCore:            r.number("conntrack.maxPerCore", *c.Conntrack.MaxPerCore, 0, math.MaxInt32),
			Min:                   r.number("conntrack.min", *c.Conntrack.Min, 0, math.MaxInt32),
			TCPEstablishedTimeout: r.period("conntrack.tcpEstablishedTimeout", *c.Conntrack.TCPEstablishedTimeout, 0),
			TCPCloseWaitTimeout:   r.period("conntrack.tcpCloseWaitTimeout", *c.Conntrack.TCPCloseWaitTimeout, 0),
			TCPBeLiberal:          c.Conntrack.TCPBeLiberal,
			UDPTimeout:            r.period("conntrack.udpTimeout", c.Conntrack.UDPTimeout, 0),
			UDPStreamTimeout:      r.period("conntrack.udpStreamTimeout", c.Conntrack.UDPStreamTimeout, 0),
		},
		Verbosity: int(c.Logging.Verbosity),
		LogFormat: c.Logging.Format,
	}
	r.number("clientConnection.burst", c.ClientConnection.Burst, 0, math.MaxInt32)
	if t := c.ClientConnection.ContentType; t != runtime.ContentTypeProtobuf && t != runtime.ContentTypeJSON {
		r.fail("clientConnection.contentType", "%q: want %s or %s", t, runtime.ContentTypeProtobuf, runtime.ContentTypeJSON)
	}
	if f := c.Logging.Format; f != "text" && f != "json" {
		r.fail("logging.format", "%q: want text or json", f)
	}
	switch c.Mode {
	case modeNFTables:
		config.SyncPeriod, config.MinSyncPeriod = r.periods("nftables", c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod)
	case modeIPVS:
		config.SyncPeriod, config.MinSyncPeriod = r.periods("ipvs", c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod)
	case modeIPTables:
		config.SyncPeriod, config.MinSyncPeriod = r.periods("iptables", c.IPTables.SyncPeriod, c.IPTables.MinSyncPeriod)
	default:
		r.fail("mode", "%q: want %s, %s or %s, or nothing", c.Mode, modeIPTables, modeIPVS, modeNFTables)
	}
	return config, r.errs
}

// node reads what concerns the node. Masquerading is configured in the section of the mode;
// node ports on loopback addresses exist in mode iptables only.
func (r *reader) node(c *object) servicetable.NodeConfig {
	all, bit, section := c.IPTables.MasqueradeAll, *c.IPTables.MasqueradeBit, "iptables"
	if c.Mode == modeNFTables {
		all, bit, section = c.NFTables.MasqueradeAll, *c.NFTables.MasqueradeBit, "nftables"
	}
	externalIPs, gated := c.FeatureGates[GateExternalIPs] // on by default
	n := servicetable.NodeConfig{
		Name:               r.hostname(c.HostnameOverride),
		IPs:                r.bindAddress(c.BindAddress),
		Mode:               servicetable.DetectLocalMode(c.DetectLocalMode),
		Bridge:             c.DetectLocal.BridgeInterface,
		InterfacePrefix:    c.DetectLocal.InterfaceNamePrefix,
		LocalhostNodePorts: c.Mode == modeIPTables && *c.IPTables.LocalhostNodePorts,
		IgnoreExternalIPs:  gated && !externalIPs,
		MasqueradeAll:      all,
		MasqueradeMark:     1 << r.number(section+".masqueradeBit", bit, 0, 31),
	}
	switch {
	case n.Mode == servicetable.ClusterCIDR && c.ClusterCIDR != "":
		n.ClusterCIDRs = r.clusterCIDRs(c.ClusterCIDR)
	case n.Mode == servicetable.BridgeInterface && n.Bridge == "":
		r.fail("detectLocal.bridgeInterface", "detectLocalMode %s needs the name of the bridge", n.Mode)
	case n.Mode == servicetable.InterfaceNamePrefix && n.InterfacePrefix == "":
		r.fail("detectLocal.interfaceNamePrefix", "detectLocalMode %s needs the prefix", n.Mode)
	case !n.Mode.Known():
		r.fail("detectLocalMode", "%q: want %s", n.Mode, servicetable.DetectLocalModes)
	}
	n.PrimaryNodePorts, n.NodePortAddresses = r.nodePortAddresses(c.NodePortAddresses)
	return n
}

// hostname is the name as kube-proxy looks the Node object up.
func (r *reader) hostname(s string) string {
	name := strings.ToLower(strings.TrimSpace(s))
	if name == "" && s != "" {
		r.fail("hostnameOverride", "%q: only white space", s)
	}
	return name
}

func (r *reader) bindAddress(s string) []netip.Addr {
	a, err := kubeaddr.Parse(s)
	switch {
	case err != nil:
		r.fail("bindAddress", "%q: want an IP address", s)
		return nil
	case a.IsUnspecified():
		return nil
	}
	return []netip.Addr{a}
}

func (r *reader) clusterCIDRs(s string) []netip.Prefix {
	var prefixes []netip.Prefix
	for text := range strings.SplitSeq(s, ",") {
		p, err := kubeaddr.ParsePrefix(text)
		if err != nil {
			r.fail("clusterCIDR", "%q: want a prefix such as 10.244.0.0/16 or fd00:10:244::/56", text)
			return nil
		}
		prefixes = append(prefixes, p)
	}
	if len(prefixes) > 2 || len(prefixes) == 2 && decision.FamilyOf(prefixes[0].Addr()) == decision.FamilyOf(prefixes[1].Addr()) {
		r.fail("clusterCIDR", "%q: want one prefix, or one of each family, separated by a comma", s)
	}
	return prefixes
}

func (r *reader) nodePortAddresses(texts []string) (primary bool, prefixes []netip.Prefix) {
	for i, s := range texts {
		isPrimary, p, ok := NodePortAddresses(s)
		if !ok {
			r.fail(fmt.Sprintf("nodePortAddresses[%d]", i), "%q: want a prefix such as 172.20.0.0/16, %s, %s or %s", s, keywordPrimary, keywordLocalhost, keywordAll)
		}
		primary = primary || isPrimary
		prefixes = append(prefixes, p...)
	}
	return primary, prefixes
}

// NodePortAddresses reads one value of kube-proxy's nodePortAddresses: a prefix or, as
// since Kubernetes 1.37, a keyword, in any combination with others. Primary stands for the
// node's own addresses, localhost for the loopback addresses, all for all of both families.
func NodePortAddresses(s string) (primary bool, prefixes []netip.Prefix, ok bool) {
	switch s {
	case keywordPrimary:
		return true, nil, true
	case keywordAll:
		return false, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}, true
	case keywordLocalhost:
		return false, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}, true
	}
	p, err := kubeaddr.ParsePrefix(s)
	return false, []netip.Prefix{p}, err == nil
}

func (r *reader) hostPort(field, s string) string {
	host, port, err := net.SplitHostPort(s)
	a, notAddress := kubeaddr.Parse(host)
	n, notPort := strconv.ParseUint(port, 10, 16)
	if err != nil || notAddress != nil || notPort != nil || n == 0 {
		r.fail(field, "%q: want IP:port, as 0.0.0.0:%d or [::]:%d", s, healthzPort, healthzPort)
		return s
	}
	return netip.AddrPortFrom(a, uint16(n)).String()
}

// number is n, or least if that is out of range.
func (r *reader) number(field string, n, least, most int32) int {
	if n < least || n > most {
		want := "from " + strconv.Itoa(int(least)) + " to " + strconv.Itoa(int(most))
		if most == math.MaxInt32 {
			want = strconv.Itoa(int(least)) + " or more"
		}
		r.fail(field, "%d: want %s", n, want)
		return int(least)
	}
	return int(n)
}

func (r *reader) period(field string, d metav1.Duration, least time.Duration) time.Duration {
	if d.Duration < least {
		r.fail(field, "%s: a time cannot be negative", d.Duration)
	}
	return d.Duration
}

func (r *reader) periods(section string, sync, least metav1.Duration) (time.Duration, time.Duration) {
	s := r.period(section+".syncPeriod", sync, time.Nanosecond)
	m := r.period(section+".minSyncPeriod", least, 0)
	if s > 0 && m > s {
		r.fail(section+".minSyncPeriod", "%s: want at most syncPeriod (%s)", m, s)
	}
	return s, m
}

// ignored names the fields that are set to something other than their default and that
// nfqproxy cannot honour: one warning each, which begins with the field's path.
func ignored(c *object) []string {
	var warnings []string
	warn := func(set bool, field string, value any, why string) {
		if set {
			warnings = append(warnings, fmt.Sprintf("%s: %v: ignored: %s", field, value, why))
		}
	}
	if c.Mode != modeIPTables {
		warnings = append(warnings, fmt.Sprintf("mode: %s: nfqproxy has one mode, which decides as mode %s; it uses the settings of this mode for masquerading, node ports and sync periods", c.Mode, modeIPTables))
	}
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(c.FeatureGates)), func(name string) bool { return name == GateExternalIPs })
	warn(len(others) > 0, "featureGates", strings.Join(others, ", "), "nfqproxy's only feature gate is "+GateExternalIPs)
	warn(c.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion", c.ShowHiddenMetricsForVersion, "nfqproxy hides no metrics")
	warn(c.PortRange != "", "portRange", c.PortRange, "kube-proxy does not use it either")
	warn(c.WindowsRunAsService, "windowsRunAsService", true, "nfqproxy is for Linux")
	warnings = append(warnings, set("winkernel", c.Winkernel, "nfqproxy is for Linux")...)

	ipvs := c.IPVS
	ipvs.SyncPeriod.Duration, ipvs.MinSyncPeriod.Duration = 0, 0 // not relevant in other modes
	warnings = append(warnings, set("ipvs", ipvs, "nfqproxy does not use IPVS")...)

	frequency := c.Logging.FlushFrequency.Duration.Duration
	warn(frequency != flushFrequency, "logging.flushFrequency", frequency, "the log is not buffered")
	warn(len(c.Logging.VModule) > 0, "logging.vmodule", fmt.Sprintf("%d patterns", len(c.Logging.VModule)), "the level is the same for all files")
	for _, o := range []struct {
		field string
		split bool
		size  int64
	}{
		{"logging.options.text", c.Logging.Options.Text.SplitStream, c.Logging.Options.Text.InfoBufferSize.Value()},
		{"logging.options.json", c.Logging.Options.JSON.SplitStream, c.Logging.Options.JSON.InfoBufferSize.Value()},
	} {
		warn(o.split, o.field+".splitStream", true, "the whole log goes to standard error")
		warn(o.size != 0, o.field+".infoBufferSize", o.size, "the log is not buffered")
	}
	return warnings
}

// set warns of each field of a section that is not zero. An empty list is none.
func set(section string, fields any, why string) []string {
	var warnings []string
	v := reflect.ValueOf(fields)
	for i := range v.NumField() {
		f := v.Field(i)
		if f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0 {
			continue
		}
		value := f.Interface()
		if d, ok := value.(metav1.Duration); ok {
			value = d.Duration
		}
		warnings = append(warnings, fmt.Sprintf("%s.%s: %v: ignored: %s", section, v.Type().Field(i).Tag.Get("json"), value, why))
	}
	return warnings
}
