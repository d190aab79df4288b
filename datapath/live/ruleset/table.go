package ruleset

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// set is one set or map of a table.
type set struct {
	table *table
	name  string
	id    uint32 // unique in a transaction
	key   nftables.SetDatatype
	data  nftables.SetDatatype // of a map; zero in a set
	// dynamic: rules add elements, for timeout if they give no other, up to size.
	dynamic bool
	timeout time.Duration
	size    uint32
}

// mapTo makes a map of the set.
func (s *set) mapTo(data nftables.SetDatatype) *set {
	s.data = data
	return s
}

// filledByRules makes the set dynamic.
func (s *set) filledByRules(timeout time.Duration, size uint32) *set {
	s.dynamic, s.timeout, s.size = true, timeout, size
	return s
}

func (s *set) isMap() bool { return s.data != nftables.SetDatatype{} }

// isVerdicts reports whether the set is a map of verdicts.
func (s *set) isVerdicts() bool { return s.data == nftables.TypeVerdict }

// flags are those of the set's definition (NFT_SET_...).
func (s *set) flags() (flags uint32) {
	if s.dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	if s.isMap() {
		flags |= unix.NFT_SET_MAP
	}
	return flags
}

// String is the definition in nft's language.
func (s *set) String() string {
	text := fmt.Sprintf("set %s { type %s", s.name, s.key.Name)
	if s.isMap() {
		text = fmt.Sprintf("map %s { type %s : %s", s.name, s.key.Name, s.data.Name)
	}
	if s.dynamic {
		text += "; flags dynamic,timeout"
		if s.timeout > 0 {
			text += fmt.Sprintf("; timeout %s", s.timeout)
		}
		text += fmt.Sprintf("; size %d", s.size)
	}
	return text + "; }"
}

// table is the table of an address family, with its sets.
type table struct {
	family
	sets []*set // all of the following
	// seen has the tuples of UDP flows whose packets need no decision.
	seen *set
	// service holds address, protocol and port of the services that have endpoints, and
	// nodePort protocol and port of their node ports, which are open at nodePortAddr.
	service, nodePort, nodePortAddr *set
	// refusedPort holds protocol and port of the node ports that are refused at every local
	// address, loopback ones included.
	refusedPort *set
	// scope holds address, protocol and port of all services of which flows are queued, with endpoints
	// or without, and local the node's addresses; nil if everything is queued.
	scope, local *set
	// decide has address, protocol and port of services whose flows the kernel decides, decidePort
	// protocol and port of their node ports, with verdicts.
	decide, decidePort *set
	// rpStrict and rpLoose hold interfaces; nil without Spec.ReversePath, and in IPv6.
	rpStrict, rpLoose *set
	// alive has an element while packets are queued; nil: they always are.
	alive *set
	// copy are the maps of the kernel's copy of the service table.
	copy copyMaps
	// balances are the chains, by name, to which elements of maps lead or led.
	balances map[string]chain
}

// String returns the table as in nft's language: "ip nfqproxy".
func (t *table) String() string { return t.name + " " + TableName }

// tables are those of both families.
type tables [2]*table

func newTables(spec *Spec) tables { return tables{newTable(spec, ipv4), newTable(spec, ipv6)} }

// of returns the table of a family.
func (t tables) of(f decision.Family) *table {
	if f == decision.IPv6 {
		return t[1]
	}
	return t[0]
}

// sets returns the sets of both tables.
func (t tables) sets() []*set { return slices.Concat(t[0].sets, t[1].sets) }

func (t tables) String() string { return t[0].String() + " and " + t[1].String() }

func newTable(spec *Spec, f family) *table {
	t := &table{family: f, balances: make(map[string]chain)}
	newSet := func(name string, types ...nftables.SetDatatype) *set {
		s := &set{table: t, name: name, id: uint32(f.nfproto)<<8 + uint32(len(t.sets)) + 1, key: types[0]}
		if len(types) > 1 {
			s.key = nftables.MustConcatSetType(types...)
		}
		t.sets = append(t.sets, s)
		return s
	}
	addr, proto, port := f.addrType, nftables.TypeInetProto, nftables.TypeInetService
	t.seen = newSet("seen", addr, addr, port, port).filledByRules(spec.SeenTimeout, spec.SeenSize)
	t.service = newSet("service", addr, proto, port)
	t.nodePort = newSet("nodeport", proto, port)
	t.nodePortAddr = newSet("nodeport_addr", addr)
	t.refusedPort = newSet("refused_port", proto, port)
	t.decide = newSet("decide", addr, proto, port).mapTo(nftables.TypeVerdict)
	t.decidePort = newSet("decide_nodeport", proto, port).mapTo(nftables.TypeVerdict)
	if spec.OnlyServices {
		t.scope, t.local = newSet("scope", addr, proto, port), newSet("local", addr)
	}
	if spec.ReversePath && f == ipv4 {
		t.rpStrict, t.rpLoose = newSet("rp_strict", nftables.TypeIFIndex), newSet("rp_loose", nftables.TypeIFIndex)
	}
	if a := spec.Alive; a.IPv4 && f == ipv4 || a.IPv6 && f == ipv6 {
		t.alive = newSet("alive", nftables.TypeEtherType).filledByRules(a.Timeout, aliveSize)
	}
	t.copy = newCopyMaps(addr, newSet)
	return t
}

// kernel changes the nftables of a network namespace. Changes are collected in a transaction, which run
// carries out.
type kernel struct {
	conn  *Connection
	table string // the name of the tables that it changes
	open  nft.Transaction
	// commits counts the transactions that changed the kernel's rules.
	commits uint32
}

// transactionSize bounds transactions, of which the kernel has a copy. It is larger than all changes but
// the first table of a cluster with many thousands of endpoints.
const transactionSize = 4 << 20

// run carries the open transaction out.
func (k *kernel) run() error {
	err := k.conn.run(&k.open)
	if err == nil && k.open.Size() > 0 {
		k.commits++
	}
	k.open = nft.Transaction{}
	return err
}

// addTable adds a table with flags (NFT_TABLE_F_...), or gives them to an existing one. Without flags it leaves that as it is.
func (k *kernel) addTable(t *table, flags uint32) {
	k.open.Add(t.nfproto, unix.NFT_MSG_NEWTABLE, netlink.Create, func(e *netlink.AttributeEncoder) {
		nft.NamedTable(k.table)(e)
		if flags != 0 {
			e.Uint32(unix.NFTA_TABLE_FLAGS, flags)
		}
	})
}

func (k *kernel) delTable(t *table) {
	k.open.Add(t.nfproto, unix.NFT_MSG_DELTABLE, 0, nft.NamedTable(k.table))
}

// addChain adds a chain, or does nothing if it exists with the same hook.
func (k *kernel) addChain(t *table, c chain) {
	k.open.Add(t.nfproto, unix.NFT_MSG_NEWCHAIN, netlink.Create, func(e *netlink.AttributeEncoder) {
		nft.NamedChain(k.table, c.name)(e)
		if c.kind == "" {
			return
		}
		e.Nested(unix.NFTA_CHAIN_HOOK, func(e *netlink.AttributeEncoder) error {
			e.Uint32(unix.NFTA_HOOK_HOOKNUM, uint32(c.hook))
			e.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))
			return nil
		})
		e.String(unix.NFTA_CHAIN_TYPE, c.kind)
	})
}

// flushChain removes the rules of a chain.
func (k *kernel) flushChain(t *table, name string) {
	k.open.Add(t.nfproto, unix.NFT_MSG_DELRULE, 0, nft.RulesOf(k.table, name))
}

func (k *kernel) delChain(t *table, name string) {
	k.open.Add(t.nfproto, unix.NFT_MSG_DELCHAIN, 0, nft.NamedChain(k.table, name))
}

// addRules appends rules to a chain.
func (k *kernel) addRules(t *table, c chain) {
	for _, r := range c.rules {
		k.open.AddRule(t.nfproto, netlink.Append, k.table, c.name, r.exprs(), nil)
	}
}

// addSet adds a set, without elements.
func (k *kernel) addSet(s *set) {
	k.open.Add(s.table.nfproto, unix.NFT_MSG_NEWSET, netlink.Create, func(e *netlink.AttributeEncoder) {
		nft.NamedSet(k.table, s.name)(e)
		e.Uint32(unix.NFTA_SET_FLAGS, s.flags())
		e.Uint32(unix.NFTA_SET_KEY_TYPE, s.key.GetNFTMagic())
		e.Uint32(unix.NFTA_SET_KEY_LEN, s.key.Bytes)
		e.Uint32(unix.NFTA_SET_ID, s.id)
		if s.isMap() {
			kind := s.data.GetNFTMagic()
			if s.isVerdicts() {
				kind = uint32(unix.NFT_DATA_VERDICT)
			}
			e.Uint32(unix.NFTA_SET_DATA_TYPE, kind)
			e.Uint32(unix.NFTA_SET_DATA_LEN, s.data.Bytes)
		}
		if s.dynamic {
			e.Uint64(unix.NFTA_SET_TIMEOUT, uint64(s.timeout.Milliseconds()))
			e.Nested(unix.NFTA_SET_DESC, func(e *netlink.AttributeEncoder) error {
				e.Uint32(unix.NFTA_SET_DESC_SIZE, s.size)
				return nil
			})
		}
	})
}

func (k *kernel) delSet(t *table, name string) {
	k.open.Add(t.nfproto, unix.NFT_MSG_DELSET, 0, nft.NamedSet(k.table, name))
}

// addElement adds an element; see [nft.Element].
func (k *kernel) addElement(s *set, key, data string) {
	k.open.AddElement(s.table.nfproto, unix.NFT_MSG_NEWSETELEM, k.table, s.name, nft.Element{Key: key, Data: data, Verdict: s.isVerdicts()})
}

func (k *kernel) delElement(s *set, key string) {
	k.open.AddElement(s.table.nfproto, unix.NFT_MSG_DELSETELEM, k.table, s.name, nft.Element{Key: key})
}
