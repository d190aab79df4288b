package hostrules

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// Read reads the rules of the calling thread's network namespace. nfqproxy's own are left out.
// Each back end's rules are a consistent snapshot. It fails without CAP_NET_ADMIN, if a table as a
// whole is malformed, and if the rules change all the time ([nft.ErrChanged],
// [xtables.ErrChanged]).
func Read() (*Rules, error) {
	r := new(Rules)
	if err := errors.Join(r.readLegacy(), r.readNFT()); err != nil {
		return nil, fmt.Errorf("read the host's nat rules: %w", err)
	}
	r.sort()
	return r, nil
}

var families = []iptables.Family{iptables.IPv4, iptables.IPv6}

const natTable = "nat"

// readLegacy reads the tables of iptables-legacy. It reads only loaded tables, because reading a
// table loads it.
func (r *Rules) readLegacy() error {
	for _, f := range families {
		t := &Table{Backend: xtables.Legacy, Family: f, Name: natTable, Priority: prioritySNAT}
		loaded, err := xtables.ReadLoaded(f, natTable)
		if loaded != nil && err == nil {
			var nat *iptables.Table
			nat, err = legacyRules(loaded, xtables.SetNames)
			t.Dump = dumpOf(f, nat)
			r.Tables = append(r.Tables, t)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	return nil
}

// maxAttempts is how often nftables is read again after a change meanwhile.
const maxAttempts = 10

// readNFT reads nftables' tables that translate at postrouting. It takes several dumps, which must
// be of one generation: a rule may jump to a chain that was made between them. If the generations
// follow each other too closely, other tables are changing in most cases, and two reads with equal
// results are accepted.
func (r *Rules) readNFT() error {
	before, err := nft.Generation()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	var last []*Table
	for range maxAttempts {
		tables, err := readNFTTables()
		after, e := nft.Generation()
		switch {
		case e != nil:
			return fmt.Errorf("nftables: %w", e)
		case err == nil && (after == before || last != nil && reflect.DeepEqual(tables, last)):
			r.Tables = append(r.Tables, tables...)
			return nil
		case after == before:
			return err
		}
		before, last = after, tables
	}
	return fmt.Errorf("nftables: %w", nft.ErrChanged)
}

func readNFTTables() ([]*Table, error) {
	all, err := nftTables()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	var tables []*Table
	device := deviceNames()
	for _, t := range all {
		if !t.translates() || isOwn(t.Family, t.Name) {
			continue
		}
		if err := t.readContents(); err != nil {
			return nil, fmt.Errorf("nftables table %s: %w", t, err)
		}
		tables = append(tables, t.tables(&kernel{sets: t.sets, ipset: xtables.SetNames, device: device})...)
	}
	return tables, nil
}

// deviceNames looks up devices of the calling thread's network namespace by their index, once for
// each: a lookup may cost a listing of all.
func deviceNames() func(index uint32) (string, bool) {
	names := make(map[uint32]string) // empty: there is no such device
	return func(index uint32) (string, bool) {
		name, known := names[index]
		if !known {
			if d, err := net.InterfaceByIndex(int(index)); err == nil {
				name = d.Name
			}
			names[index] = name
		}
		return name, name != ""
	}
}

// nftTables lists the tables of all families, with their chains but without rules and
// sets.
func nftTables() ([]*nftTable, error) {
	all, err := nft.Tables(nft.DumpOnce, unix.NFPROTO_UNSPEC)
	tables := make([]*nftTable, len(all))
	for i, t := range all {
		tables[i] = &nftTable{Table: t}
	}
	return tables, err
}

// readContents reads the table's sets and rules.
func (t *nftTable) readContents() error {
	t.sets = make(map[string]*set)
	err := nft.DumpOnce(t.Family, unix.NFT_MSG_GETSET, nft.SetsOf(t.Name), func(_ uint8, a nft.Attributes) {
		if a.Text(unix.NFTA_SET_TABLE) == t.Name {
			name := a.Text(unix.NFTA_SET_NAME)
			t.sets[name] = &set{name: name, flags: a.Uint32(unix.NFTA_SET_FLAGS), keySize: bounded(a.Uint32(unix.NFTA_SET_KEY_LEN))}
		}
	})
	if err != nil {
		return fmt.Errorf("sets: %w", err)
	}
	for _, s := range t.sets {
		if err := t.readElements(s); err != nil {
			return fmt.Errorf("set %s: %w", s.name, err)
		}
	}
	if t.rules, err = t.Rules(nft.DumpOnce); err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	return nil
}

func (t *nftTable) readElements(s *set) error {
	read := func() (int, error) {
		s.elements = nil
		err := nft.DumpOnce(t.Family, unix.NFT_MSG_GETSETELEM, nft.ElementsOf(t.Name, s.name), func(_ uint8, a nft.Attributes) {
			for _, e := range nft.Elements(a[unix.NFTA_SET_ELEM_LIST_ELEMENTS]) {
				s.add(e)
			}
		})
		s.finish()
		// A resized hash table is walked twice in part.
		s.elements = slices.CompactFunc(s.elements, func(a, b element) bool {
			return a.catchall == b.catchall && bytes.Equal(a.in.first, b.in.first) && bytes.Equal(a.in.last, b.in.last)
		})
		if s.broken { // elements are left out
			return math.MaxInt, err
		}
		return len(s.elements), err
	}
	// Only hash tables are resized, and elements with timeouts can expire meanwhile.
	if s.flags&(unix.NFT_SET_INTERVAL|unix.NFT_SET_TIMEOUT|unix.NFT_SET_EVAL) != 0 {
		_, err := read()
		return err
	}
	return nft.ReadSet(t.Family, t.Name, s.name, read)
}

// commentIn finds the comment in a rule's user data: type, length and text (libnftnl/udata.h,
// NFTNL_UDATA_RULE_COMMENT is 0).
func commentIn(data []byte) string {
	for len(data) >= 2 && int(data[1]) <= len(data)-2 {
		text := data[2 : 2+int(data[1])]
		if data[0] == 0 {
			return string(slices.DeleteFunc(slices.Clone(text), func(c byte) bool { return c == 0 }))
		}
		data = data[2+len(text):]
	}
	return ""
}
