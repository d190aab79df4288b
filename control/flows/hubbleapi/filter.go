package hubbleapi

import (
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/flows/hubble"
)

// filter is flow.FlowFilter: all conditions must match.
type filter []condition

type condition func(*hubble.Flow) bool

func anyMatches(list []filter, f *hubble.Flow) bool {
	return slices.ContainsFunc(list, func(l filter) bool {
		return !slices.ContainsFunc(l, func(c condition) bool { return !c(f) })
	})
}

// appendFilter reads a filter. Values of one field are alternatives (pkg/hubble/filters).
func appendFilter(list []filter, b []byte) ([]filter, error) {
	values := make(map[int][]field)
	var order []int
	err := eachField(b, func(f field) error {
		n := int(f.number)
		if values[n] == nil {
			order = append(order, n)
		}
		values[n] = append(values[n], f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	l := filter{}
	for _, n := range order {
		kind, known := filterFields[n]
		if !known {
			return nil, failure(codeUnimplemented, "filter field %d (see flow.FlowFilter in Cilium's flow.proto) is not supported by nfqproxy; supported are %s", n, supported())
		}
		c, err := kind.parse(values[n])
		if err != nil {
			return nil, failure(codeInvalidArgument, "filter %s: %v", kind.name, err)
		}
		l = append(l, c)
	}
	return append(list, l), nil
}

// filterFields are the supported fields of flow.FlowFilter.
var filterFields = map[int]struct {
	name  string
	parse func([]field) (condition, error)
}{
	1:  {"source_ip", byAddress(func(f *hubble.Flow) string { return f.IP.Source })},
	3:  {"destination_ip", byAddress(func(f *hubble.Flow) string { return f.IP.Destination })},
	34: {"source_ip_xlated", byAddress(func(f *hubble.Flow) string { return f.IP.SourceXlated })},
	2:  {"source_pod", byName(func(f *hubble.Flow) (string, string) { return podOf(f.Source) })},
	4:  {"destination_pod", byName(func(f *hubble.Flow) (string, string) { return podOf(f.Destination) })},
	16: {"source_service", byName(func(f *hubble.Flow) (string, string) { return serviceOf(f.SourceService) })},
	17: {"destination_service", byName(func(f *hubble.Flow) (string, string) { return serviceOf(f.DestService) })},
	13: {"source_port", byText(func(f *hubble.Flow) string { return port(ports(f).Source) })},
	14: {"destination_port", byText(func(f *hubble.Flow) string { return port(ports(f).Destination) })},
	12: {"protocol", byText(protocol)},
	29: {"uuid", byText(func(f *hubble.Flow) string { return f.UUID })},
	24: {"node_name", byPattern(func(f *hubble.Flow) string { return f.NodeName })},
	5:  {"verdict", byNumber(func(f *hubble.Flow) uint64 { return hubble.Number(f.Verdict) })},
	33: {"drop_reason_desc", byNumber(func(f *hubble.Flow) uint64 { return uint64(f.DropReason) })},
	30: {"traffic_direction", byNumber(func(f *hubble.Flow) uint64 { return hubble.Number(f.Direction) })},
	25: {"ip_version", byNumber(func(f *hubble.Flow) uint64 { return hubble.Number(f.IP.Version) })},
	19: {"source_identity", byNumber(func(f *hubble.Flow) uint64 { return identity(f.Source) })},
	20: {"destination_identity", byNumber(func(f *hubble.Flow) uint64 { return identity(f.Destination) })},
	15: {"reply", byReply},
	6:  {"event_type", byEventType},
	23: {"tcp_flags", byTCPFlags},
}

// supported lists the fields' names.
func supported() string {
	var list []string
	for _, f := range filterFields {
		list = append(list, f.name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func texts(values []field) []string {
	var list []string
	for _, v := range values {
		list = append(list, string(v.bytes))
	}
	return list
}

// byAddress takes addresses and prefixes.
func byAddress(of func(*hubble.Flow) string) func([]field) (condition, error) {
	return func(values []field) (condition, error) {
		var prefixes []netip.Prefix
		for _, v := range texts(values) {
			p, err := netip.ParsePrefix(v)
			if a, notOne := netip.ParseAddr(v); notOne == nil {
				p, err = netip.PrefixFrom(a, a.BitLen()), nil
			}
			if err != nil {
				return nil, failure(codeInvalidArgument, "%q: want an address or a prefix", v)
			}
			prefixes = append(prefixes, p)
		}
		return func(f *hubble.Flow) bool {
			a, err := netip.ParseAddr(of(f))
			return err == nil && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
		}, nil
	}
}

// byName takes NAMESPACE/PREFIX, NAMESPACE/ and /PREFIX; without a slash the namespace is
// default (pkg/hubble/k8s).
func byName(of func(*hubble.Flow) (namespace, name string)) func([]field) (condition, error) {
	return func(values []field) (condition, error) {
		names := texts(values)
		return func(f *hubble.Flow) bool {
			namespace, name := of(f)
			return name != "" && slices.ContainsFunc(names, func(n string) bool {
				in, prefix, ok := strings.Cut(n, "/")
				if !ok {
					in, prefix = "default", n
				}
				return (in == "" || in == namespace) && strings.HasPrefix(name, prefix)
			})
		}, nil
	}
}

func byText(of func(*hubble.Flow) string) func([]field) (condition, error) {
	return func(values []field) (condition, error) {
		list := texts(values)
		return func(f *hubble.Flow) bool {
			is := of(f)
			return slices.ContainsFunc(list, func(v string) bool { return strings.EqualFold(v, is) })
		}, nil
	}
}

// byPattern takes names with *.
func byPattern(of func(*hubble.Flow) string) func([]field) (condition, error) {
	return func(values []field) (condition, error) {
		patterns := texts(values)
		for _, p := range patterns {
			if _, err := path.Match(p, ""); err != nil {
				return nil, failure(codeInvalidArgument, "%q: want a name, where * matches anything", p)
			}
		}
		return func(f *hubble.Flow) bool {
			return slices.ContainsFunc(patterns, func(p string) bool {
				is, _ := path.Match(p, of(f))
				return is
			})
		}, nil
	}
}

func byNumber(of func(*hubble.Flow) uint64) func([]field) (condition, error) {
	return func(values []field) (condition, error) {
		list, err := varints(values)
		return func(f *hubble.Flow) bool { return slices.Contains(list, of(f)) }, err
	}
}

func varints(values []field) ([]uint64, error) {
	var list []uint64
	for _, v := range values {
		more, err := v.varints()
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

// byReply takes false and true. Packets of unknown direction match neither.
func byReply(values []field) (condition, error) {
	list, err := varints(values)
	return func(f *hubble.Flow) bool {
		is := f.IsReply
		return is != nil && slices.ContainsFunc(list, func(v uint64) bool { return *is == (v != 0) })
	}, err
}

// byEventType takes flow.EventTypeFilter.
func byEventType(values []field) (condition, error) {
	type eventType struct{ kind, matchSub, sub uint64 }
	var list []eventType
	for _, v := range values {
		var e eventType
		err := eachField(v.bytes, func(f field) error {
			switch f.number {
			case 1:
				e.kind = f.varint
			case 2:
				e.matchSub = f.varint
			case 3:
				e.sub = f.varint
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return func(f *hubble.Flow) bool {
		return slices.ContainsFunc(list, func(e eventType) bool {
			return uint64(f.EventType.Type) == e.kind && (e.matchSub == 0 || uint64(f.EventType.SubType) == e.sub)
		})
	}, nil
}

// byTCPFlags takes flow.TCPFlags: all given flags must be set.
func byTCPFlags(values []field) (condition, error) {
	var wanted [][]int
	for _, v := range values {
		var flags []int
		err := eachField(v.bytes, func(f field) error {
			if f.varint != 0 {
				flags = append(flags, int(f.number))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, flags)
	}
	return func(f *hubble.Flow) bool {
		set := ports(f).Flags
		if set == nil {
			return false
		}
		has := map[int]bool{1: set.FIN, 2: set.SYN, 3: set.RST, 5: set.ACK}
		return slices.ContainsFunc(wanted, func(flags []int) bool {
			return !slices.ContainsFunc(flags, func(n int) bool { return !has[n] })
		})
	}, nil
}

func podOf(e *hubble.Endpoint) (namespace, name string) {
	if e == nil {
		return "", ""
	}
	return e.Namespace, e.PodName
}

func serviceOf(s *hubble.ServiceName) (namespace, name string) {
	if s == nil {
		return "", ""
	}
	return s.Namespace, s.Name
}

func identity(e *hubble.Endpoint) uint64 {
	if e == nil {
		return 0
	}
	return uint64(e.Identity)
}

func port(p uint16) string { return strconv.Itoa(int(p)) }

func ports(f *hubble.Flow) *hubble.Ports {
	switch l := f.L4; {
	case l.TCP != nil:
		return l.TCP
	case l.UDP != nil:
		return l.UDP
	default:
		return l.SCTP
	}
}

func protocol(f *hubble.Flow) string {
	switch l := f.L4; {
	case l.TCP != nil:
		return "tcp"
	case l.UDP != nil:
		return "udp"
	default:
		return "sctp"
	}
}
