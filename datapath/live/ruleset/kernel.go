package ruleset

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

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

// runIfLarge is run if the transaction is as large as it may be.
func (k *kernel) runIfLarge() error {
	if k.open.Size() < k.conn.most {
		return nil
	}
	return k.run()
}

func (k *kernel) named(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, k.table) }

// addTable adds a table, or does nothing if there is one.
func (k *kernel) addTable(t *table) {
	k.open.Add(t.nfproto, unix.NFT_MSG_NEWTABLE, netlink.Create, k.named)
}

// addOwnTable adds a table that the connection owns, if it is to own any, or makes it the owner of one
// that stays without an owner.
func (k *kernel) addOwnTable(t *table) {
	if !k.conn.owns {
		k.addTable(t)
		return
	}
	k.addTableWith(t, tableOwner|tablePersist)
}

// addTableWith adds a table with flags (NFT_TABLE_F_...). A dormant one has no hooks.
func (k *kernel) addTableWith(t *table, flags uint32) {
	k.open.Add(t.nfproto, unix.NFT_MSG_NEWTABLE, netlink.Create, func(e *netlink.AttributeEncoder) {
		k.named(e)
		e.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	})
}

func (k *kernel) delTable(t *table) {
	k.open.Add(t.nfproto, unix.NFT_MSG_DELTABLE, 0, k.named)
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
		e.String(unix.NFTA_SET_TABLE, k.table)
		e.String(unix.NFTA_SET_NAME, s.name)
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
	k.open.Add(t.nfproto, unix.NFT_MSG_DELSET, 0, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_TABLE, k.table)
		e.String(unix.NFTA_SET_NAME, name)
	})
}

// addElement adds an element; see [nft.Element].
func (k *kernel) addElement(s *set, key, data string) {
	k.open.AddElement(s.table.nfproto, unix.NFT_MSG_NEWSETELEM, k.table, s.name, nft.Element{Key: key, Data: data, Verdict: s.isVerdicts()})
}

func (k *kernel) delElement(s *set, key string) {
	k.open.AddElement(s.table.nfproto, unix.NFT_MSG_DELSETELEM, k.table, s.name, nft.Element{Key: key})
}
