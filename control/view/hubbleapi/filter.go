package hubbleapi

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
)

// filter is a flow.FlowFilter: all conditions must match.
type filter []condition

type condition func(*hubblepb.Flow) bool

func anyMatches(list []filter, f *hubblepb.Flow) bool {
	return slices.ContainsFunc(list, func(l filter) bool {
		return !slices.ContainsFunc(l, func(c condition) bool { return !c(f) })
	})
}

func parseFilters(list []*hubblepb.FlowFilter) ([]filter, error) {
	filters := make([]filter, len(list))
	for i, m := range list {
		var err error
		if filters[i], err = parseFilter(m); err != nil {
			return nil, err
		}
	}
	return filters, nil
}

// parseFilter reads a filter. Values of one field are alternatives (pkg/hubble/filters).
func parseFilter(m *hubblepb.FlowFilter) (l filter, err error) {
	fields := m.ProtoReflect()
	if newer, _, _ := protowire.ConsumeTag(fields.GetUnknown()); newer != 0 {
		return nil, unsupportedField(newer)
	}
	fields.Range(func(d protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		parse, supported := conditions[d.Name()]
		if !supported {
			err = unsupportedField(d.Number())
			return false
		}
		c, invalid := parse(m)
		if invalid != nil {
			err = status.Errorf(codes.InvalidArgument, "filter %s: %v", d.Name(), invalid)
			return false
		}
		l = append(l, c)
		return true
	})
	return l, err
}

// unsupportedField is the error of a field that is not in conditions.
func unsupportedField(n protoreflect.FieldNumber) error {
	var list []string
	for name := range conditions {
		list = append(list, string(name))
	}
	slices.Sort(list)
	return status.Errorf(codes.Unimplemented, "filter field %d (see flow.FlowFilter in Cilium's flow.proto) is not supported by nfqproxy; supported are %s", n, strings.Join(list, ", "))
}

// parser makes a condition of one field of a filter.
type parser func(*hubblepb.FlowFilter) (condition, error)

// conditions are the supported fields of flow.FlowFilter.
var conditions = map[protoreflect.Name]parser{
	"source_ip":            byAddress((*hubblepb.FlowFilter).GetSourceIp, func(f *hubblepb.Flow) string { return f.GetIP().GetSource() }),
	"destination_ip":       byAddress((*hubblepb.FlowFilter).GetDestinationIp, func(f *hubblepb.Flow) string { return f.GetIP().GetDestination() }),
	"source_ip_xlated":     byAddress((*hubblepb.FlowFilter).GetSourceIpXlated, func(f *hubblepb.Flow) string { return f.GetIP().GetSourceXlated() }),
	"source_pod":           byName((*hubblepb.FlowFilter).GetSourcePod, func(f *hubblepb.Flow) (string, string) { return podOf(f.GetSource()) }),
	"destination_pod":      byName((*hubblepb.FlowFilter).GetDestinationPod, func(f *hubblepb.Flow) (string, string) { return podOf(f.GetDestination()) }),
	"source_service":       byName((*hubblepb.FlowFilter).GetSourceService, func(f *hubblepb.Flow) (string, string) { return serviceOf(f.GetSourceService()) }),
	"destination_service":  byName((*hubblepb.FlowFilter).GetDestinationService, func(f *hubblepb.Flow) (string, string) { return serviceOf(f.GetDestinationService()) }),
	"source_port":          byText((*hubblepb.FlowFilter).GetSourcePort, func(f *hubblepb.Flow) string { return transportOf(f).source }),
	"destination_port":     byText((*hubblepb.FlowFilter).GetDestinationPort, func(f *hubblepb.Flow) string { return transportOf(f).destination }),
	"protocol":             byText((*hubblepb.FlowFilter).GetProtocol, func(f *hubblepb.Flow) string { return transportOf(f).protocol }),
	"uuid":                 byText((*hubblepb.FlowFilter).GetUuid, (*hubblepb.Flow).GetUuid),
	"node_name":            byPattern((*hubblepb.FlowFilter).GetNodeName, (*hubblepb.Flow).GetNodeName),
	"verdict":              byValue((*hubblepb.FlowFilter).GetVerdict, (*hubblepb.Flow).GetVerdict),
	"drop_reason_desc":     byValue((*hubblepb.FlowFilter).GetDropReasonDesc, (*hubblepb.Flow).GetDropReasonDesc),
	"traffic_direction":    byValue((*hubblepb.FlowFilter).GetTrafficDirection, (*hubblepb.Flow).GetTrafficDirection),
	"ip_version":           byValue((*hubblepb.FlowFilter).GetIpVersion, func(f *hubblepb.Flow) hubblepb.IPVersion { return f.GetIP().GetIpVersion() }),
	"source_identity":      byValue((*hubblepb.FlowFilter).GetSourceIdentity, func(f *hubblepb.Flow) uint32 { return f.GetSource().GetIdentity() }),
	"destination_identity": byValue((*hubblepb.FlowFilter).GetDestinationIdentity, func(f *hubblepb.Flow) uint32 { return f.GetDestination().GetIdentity() }),
	"reply":                byReply,
	"event_type":           byEventType,
	"tcp_flags":            byTCPFlags,
}

// byAddress takes addresses and prefixes.
func byAddress(values func(*hubblepb.FlowFilter) []string, of func(*hubblepb.Flow) string) parser {
	return func(m *hubblepb.FlowFilter) (condition, error) {
		var prefixes []netip.Prefix
		for _, v := range values(m) {
			p, err := netip.ParsePrefix(v)
			if a, notOne := netip.ParseAddr(v); notOne == nil {
				p, err = netip.PrefixFrom(a, a.BitLen()), nil
			}
			if err != nil {
				return nil, fmt.Errorf("%q: want an address or a prefix", v)
			}
			prefixes = append(prefixes, p)
		}
		return func(f *hubblepb.Flow) bool {
			a, err := netip.ParseAddr(of(f))
			return err == nil && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
		}, nil
	}
}

// byName takes NAMESPACE/PREFIX, NAMESPACE/ and /PREFIX; without a slash the namespace is
// default (pkg/hubble/k8s).
func byName(values func(*hubblepb.FlowFilter) []string, of func(*hubblepb.Flow) (namespace, name string)) parser {
	return func(m *hubblepb.FlowFilter) (condition, error) {
		return func(f *hubblepb.Flow) bool {
			namespace, name := of(f)
			return name != "" && slices.ContainsFunc(values(m), func(n string) bool {
				in, prefix, ok := strings.Cut(n, "/")
				if !ok {
					in, prefix = "default", n
				}
				return (in == "" || in == namespace) && strings.HasPrefix(name, prefix)
			})
		}, nil
	}
}

func byText(values func(*hubblepb.FlowFilter) []string, of func(*hubblepb.Flow) string) parser {
	return func(m *hubblepb.FlowFilter) (condition, error) {
		return func(f *hubblepb.Flow) bool {
			is := of(f)
			return slices.ContainsFunc(values(m), func(v string) bool { return strings.EqualFold(v, is) })
		}, nil
	}
}

// byPattern takes names with *.
func byPattern(values func(*hubblepb.FlowFilter) []string, of func(*hubblepb.Flow) string) parser {
	return func(m *hubblepb.FlowFilter) (condition, error) {
		for _, p := range values(m) {
			if _, err := path.Match(p, ""); err != nil {
				return nil, fmt.Errorf("%q: want a name, where * matches anything", p)
			}
		}
		return func(f *hubblepb.Flow) bool {
			return slices.ContainsFunc(values(m), func(p string) bool {
				is, _ := path.Match(p, of(f))
				return is
			})
		}, nil
	}
}

func byValue[T comparable](values func(*hubblepb.FlowFilter) []T, of func(*hubblepb.Flow) T) parser {
	return func(m *hubblepb.FlowFilter) (condition, error) {
		return func(f *hubblepb.Flow) bool { return slices.Contains(values(m), of(f)) }, nil
	}
}

// byReply takes false and true. Packets of unknown direction match neither.
func byReply(m *hubblepb.FlowFilter) (condition, error) {
	return func(f *hubblepb.Flow) bool {
		is := f.GetIsReply()
		return is != nil && slices.Contains(m.GetReply(), is.GetValue())
	}, nil
}

func byEventType(m *hubblepb.FlowFilter) (condition, error) {
	return func(f *hubblepb.Flow) bool {
		is := f.GetEventType()
		return slices.ContainsFunc(m.GetEventType(), func(e *hubblepb.EventTypeFilter) bool {
			return is.GetType() == e.GetType() && (!e.GetMatchSubType() || is.GetSubType() == e.GetSubType())
		})
	}, nil
}

// byTCPFlags takes sets of flags: all of a set must be there.
func byTCPFlags(m *hubblepb.FlowFilter) (condition, error) {
	return func(f *hubblepb.Flow) bool {
		set := f.GetL4().GetTCP().GetFlags()
		return set != nil && slices.ContainsFunc(m.GetTcpFlags(), func(wanted *hubblepb.TCPFlags) bool {
			all := true
			wanted.ProtoReflect().Range(func(flag protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
				all = set.ProtoReflect().Has(flag)
				return all
			})
			return all
		})
	}, nil
}

func podOf(e *hubblepb.Endpoint) (namespace, name string) { return e.GetNamespace(), e.GetPodName() }

func serviceOf(s *hubblepb.Service) (namespace, name string) { return s.GetNamespace(), s.GetName() }

// transport is the protocol of a flow and its ports, as filters have them.
type transport struct{ protocol, source, destination string }

func transportOf(f *hubblepb.Flow) transport {
	of := func(protocol string, ports interface {
		GetSourcePort() uint32
		GetDestinationPort() uint32
	}) transport {
		port := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
		return transport{protocol, port(ports.GetSourcePort()), port(ports.GetDestinationPort())}
	}
	switch l := f.GetL4().GetProtocol().(type) {
	case *hubblepb.Layer4_TCP:
		return of("tcp", l.TCP)
	case *hubblepb.Layer4_UDP:
		return of("udp", l.UDP)
	case *hubblepb.Layer4_SCTP:
		return of("sctp", l.SCTP)
	}
	return transport{}
}

// flowsRequest is observer.GetFlowsRequest. Its field mask is ignored: responses have all fields.
type flowsRequest struct {
	number               uint64 // 0: as many as there are or, following, none
	all                  bool   // all flows, with any number
	first, follow        bool
	since, until         time.Time // zero: no bound
	whitelist, blacklist []filter
}

func parseFlowsRequest(m *hubblepb.GetFlowsRequest) (r *flowsRequest, err error) {
	r = &flowsRequest{number: m.GetNumber(), first: m.GetFirst(), follow: m.GetFollow()}
	if r.number == math.MaxUint64 { // hubble observe --all
		r.number, r.all = 0, true
	}
	if r.blacklist, err = parseFilters(m.GetBlacklist()); err != nil {
		return nil, err
	}
	if r.whitelist, err = parseFilters(m.GetWhitelist()); err != nil {
		return nil, err
	}
	if r.since, err = parseTimestamp(m.GetSince()); err != nil {
		return nil, err
	}
	r.until, err = parseTimestamp(m.GetUntil())
	return r, err
}

// wants reports whether the response includes the flow.
func (r *flowsRequest) wants(f *hubblepb.Flow) bool {
	if !r.until.IsZero() && f.GetTime() != nil && f.GetTime().AsTime().After(r.until) {
		return false
	}
	return (len(r.whitelist) == 0 || anyMatches(r.whitelist, f)) && !anyMatches(r.blacklist, f)
}

// parseTimestamp returns the zero time for none.
func parseTimestamp(m *timestamppb.Timestamp) (time.Time, error) {
	if m == nil {
		return time.Time{}, nil
	}
	t := m.AsTime()
	if t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}, status.Errorf(codes.InvalidArgument, "time %d.%09d: want a year from 1 to 9999", m.GetSeconds(), m.GetNanos())
	}
	return t, nil
}
