package hostrules

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// load is the content of registers as an expression loaded it.
type load struct {
	kind loadKind
	// key is a key of meta or ct, the base of a payload, or the flags of fib (NFTA_FIB_FLAGS).
	key uint32
	// direction is valid iff kind is loadCt, and -1 where the key has none.
	direction int
	offset    int // of a payload
	size      int // bytes
	// mask and xor were applied to it, size bytes each; nil: not.
	mask, xor []byte
	data      []byte // valid iff kind is loadData
}

type loadKind uint8

const (
	loadPayload loadKind = iota
	loadMeta
	loadCt
	loadFib // the type of an address
	loadData
)

func (l *load) String() string {
	switch l.kind {
	case loadPayload:
		base, ok := map[uint32]string{
			unix.NFT_PAYLOAD_LL_HEADER: "link", unix.NFT_PAYLOAD_NETWORK_HEADER: "network", unix.NFT_PAYLOAD_TRANSPORT_HEADER: "transport",
		}[l.key]
		if !ok {
			base = fmt.Sprintf("base-%d", l.key)
		}
		return fmt.Sprintf("payload %s %d:%d", base, l.offset, l.size)
	case loadMeta:
		return "meta " + nameOf(metaNames, l.key)
	case loadCt:
		return "ct " + nameOf(ctNames, l.key)
	case loadFib:
		return "fib type"
	}
	return "value"
}

func nameOf(names map[uint32]string, key uint32) string {
	if n, ok := names[key]; ok {
		return n
	}
	return fmt.Sprintf("key-%d", key)
}

// metaNames are nft's words for the keys of meta.
var metaNames = map[uint32]string{
	unix.NFT_META_LEN: "length", unix.NFT_META_PROTOCOL: "protocol", unix.NFT_META_PRIORITY: "priority", unix.NFT_META_MARK: "mark",
	unix.NFT_META_IIF: "iif", unix.NFT_META_OIF: "oif", unix.NFT_META_IIFNAME: "iifname", unix.NFT_META_OIFNAME: "oifname",
	unix.NFT_META_IIFTYPE: "iiftype", unix.NFT_META_OIFTYPE: "oiftype", unix.NFT_META_SKUID: "skuid", unix.NFT_META_SKGID: "skgid",
	unix.NFT_META_NFTRACE: "nftrace", unix.NFT_META_RTCLASSID: "rtclassid", unix.NFT_META_SECMARK: "secmark",
	unix.NFT_META_NFPROTO: "nfproto", unix.NFT_META_L4PROTO: "l4proto", unix.NFT_META_PKTTYPE: "pkttype", unix.NFT_META_CPU: "cpu",
	unix.NFT_META_IIFGROUP: "iifgroup", unix.NFT_META_OIFGROUP: "oifgroup", unix.NFT_META_CGROUP: "cgroup", unix.NFT_META_PRANDOM: "random",
}

// ctNames are nft's words for the keys of ct.
var ctNames = map[uint32]string{
	unix.NFT_CT_STATE: "state", unix.NFT_CT_DIRECTION: "direction", unix.NFT_CT_STATUS: "status", unix.NFT_CT_MARK: "mark",
	unix.NFT_CT_EXPIRATION: "expiration", unix.NFT_CT_HELPER: "helper", unix.NFT_CT_L3PROTOCOL: "l3proto", unix.NFT_CT_SRC: "saddr",
	unix.NFT_CT_DST: "daddr", unix.NFT_CT_PROTOCOL: "protocol", unix.NFT_CT_PROTO_SRC: "proto-src", unix.NFT_CT_PROTO_DST: "proto-dst",
	unix.NFT_CT_LABELS: "label", unix.NFT_CT_ZONE: "zone", ctSrcIP: "ip saddr", ctDstIP: "ip daddr", ctSrcIP6: "ip6 saddr", ctDstIP6: "ip6 daddr",
}

// Keys that the unix package does not have (nf_tables.h, NFT_CT_SRC_IP...).
const (
	ctSrcIP  = 19
	ctDstIP  = 20
	ctSrcIP6 = 21
	ctDstIP6 = 22
)

// registers are the sixteen of 32 bits; a load is stored in its first one. Verdicts have a
// register of their own.
type registers [16]*load

const verdictRegister = unix.NFT_REG_VERDICT

// index is the first 32 bits of a register: the four of 128 bits (NFT_REG_1 to 4) are the
// same memory.
func index(register uint32) (int, bool) {
	switch {
	case unix.NFT_REG_1 <= register && register <= unix.NFT_REG_4:
		return int(register-unix.NFT_REG_1) * 4, true
	case unix.NFT_REG32_00 <= register && register <= unix.NFT_REG32_15:
		return int(register - unix.NFT_REG32_00), true
	}
	return 0, false
}

// words is how many registers this many bytes take.
func words(size int) int { return (size + 3) / 4 }

// put stores a load and removes those that it overwrites. nil is an unknown load of unknown size.
func (r *registers) put(register uint32, l *load) {
	at, ok := index(register)
	if !ok {
		return
	}
	size := 16
	if l != nil {
		size = max(l.size, 1)
	}
	for i := range r {
		if r[i] != nil && i+words(r[i].size) > at && i < at+words(size) {
			r[i] = nil
		}
	}
	r[at] = l
}

// get returns the load that begins at a register; nil: it is unknown.
func (r *registers) get(register uint32) *load {
	at, ok := index(register)
	if !ok {
		return nil
	}
	return r[at]
}

// concatenation returns the adjacent loads that make up this many bytes from a register on.
func (r *registers) concatenation(register uint32, size int) ([]*load, bool) {
	at, ok := index(register)
	var parts []*load
	for end := at + words(size); ok && at < end; {
		if at >= len(r) || r[at] == nil || at+words(r[at].size) > end {
			return nil, false
		}
		parts = append(parts, r[at])
		at += words(max(r[at].size, 1))
	}
	return parts, ok && len(parts) > 0
}
