package hostrules

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Read reads the rules of the calling thread's network namespace. nfqproxy's own are left out.
// Each back end's rules are a consistent snapshot. It fails without CAP_NET_ADMIN, if a table as a
// whole is malformed, and if the rules change all the time ([nft.ErrChanged]).
func Read() (*Rules, error) {
	r := new(Rules)
	if err := errors.Join(r.readDevices(), r.readNFT(), r.readLegacy()); err != nil {
		return nil, fmt.Errorf("read the host's nat rules: %w", err)
	}
	r.sort()
	return r, nil
}

var families = []decision.Family{decision.IPv4, decision.IPv6}

const natTable = "nat"

func (r *Rules) readDevices() error {
	all, err := net.Interfaces()
	r.Devices = make(map[string]uint32, len(all))
	for _, d := range all {
		r.Devices[d.Name] = uint32(d.Index)
	}
	return err
}

// loadedChains reads a table of iptables-legacy, if it is loaded.
func loadedChains(f decision.Family, table string) ([]*rules.Chain, error) {
	chains, err := xtables.Chains(f, table)
	if err != nil {
		return nil, err
	}
	return legacyChains(f, chains, xtables.SetNames)
}

// readLegacy reads the tables nat of iptables-legacy.
func (r *Rules) readLegacy() error {
	for _, f := range families {
		t := &Table{Backend: xtables.Legacy, Family: f, Name: natTable, Priority: prioritySNAT}
		var err error
		if t.Chains, err = loadedChains(f, natTable); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		if t.Base = chainNamed(t.Chains, postrouting); t.Base != nil {
			r.Tables = append(r.Tables, t)
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
	all, err := nft.Tables(nft.DumpOnce, unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	var tables []*Table
	for _, listed := range all {
		t := &nftTable{Table: listed}
		if !t.translates() || isOwn(t.Family, t.Name) {
			continue
		}
		if err := t.readContents(); err != nil {
			return nil, fmt.Errorf("nftables table %s: %w", t, err)
		}
		tables = append(tables, t.tables()...)
	}
	return tables, nil
}

// isOwn reports whether a table of nftables is nfqproxy's: one of its working tables, or the temporary one
// that tests the kernel's features ([ruleset.Probe]).
func isOwn(family uint8, name string) bool {
	return (family == unix.NFPROTO_IPV4 || family == unix.NFPROTO_IPV6) && (name == ruleset.TableName || strings.HasPrefix(name, ruleset.TableName+"-"))
}

// readContents reads the table's sets and rules.
func (t *nftTable) readContents() error {
	sets := make(map[string]*collected)
	err := nft.DumpOnce(t.Family, unix.NFT_MSG_GETSET, nft.NamedTable(t.Name), func(_ uint8, a nft.Attributes) {
		if a.Text(unix.NFTA_SET_TABLE) == t.Name {
			sets[a.Text(unix.NFTA_SET_NAME)] = &collected{
				flags: a.Uint32(unix.NFTA_SET_FLAGS), keySize: bounded(a.Uint32(unix.NFTA_SET_KEY_LEN)), valueSize: bounded(a.Uint32(unix.NFTA_SET_DATA_LEN)),
			}
		}
	})
	if err != nil {
		return fmt.Errorf("sets: %w", err)
	}
	t.sets = sets
	for name, s := range sets {
		if err := t.readElements(name, s); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	if t.rules, err = t.Rules(nft.DumpOnce); err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	return nil
}

func (t *nftTable) readElements(name string, s *collected) error {
	read := func() (int, error) {
		s.elements = nil
		err := nft.DumpOnce(t.Family, unix.NFT_MSG_GETSETELEM, nft.ElementsOf(t.Name, name), func(_ uint8, a nft.Attributes) {
			s.elements = append(s.elements, nft.Elements(a.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS))...)
		})
		s.sort()
		return len(s.elements), err
	}
	// Only hash tables are resized, and elements with timeouts can expire meanwhile.
	if s.flags&(unix.NFT_SET_INTERVAL|unix.NFT_SET_TIMEOUT|unix.NFT_SET_EVAL) != 0 {
		_, err := read()
		return err
	}
	return nft.ReadSet(t.Family, t.Name, name, read)
}

// commentIn finds the comment in a rule's user data: type, length and text (libnftnl/udata.h,
// NFTNL_UDATA_RULE_COMMENT is 0).
func commentIn(data []byte) string {
	for len(data) >= 2 && int(data[1]) <= len(data)-2 {
		text := data[2 : 2+int(data[1])]
		if data[0] == 0 {
			return strings.ReplaceAll(string(text), "\x00", "")
		}
		data = data[2+len(text):]
	}
	return ""
}

const (
	// pollInterval is how often iptables-legacy's rules are checked: the kernel sends no events of
	// their changes.
	pollInterval = 5 * time.Second
	// quiet is how long the rules must stay unchanged before a change is reported: programs add
	// their rules one by one.
	quiet = 100 * time.Millisecond
	// maxWait is the longest wait for that.
	maxWait = time.Second
)

// Watch calls changed whenever the rules that [Read] reads may have changed, in the calling
// thread's network namespace, until the context ends; then its error is nil. The first call comes
// once the watch is complete: later changes of what it reads cause another call. Several changes
// in short order are one call; a failed call is repeated some seconds later. changed is called in
// the calling goroutine, which may have locked its thread to the namespace.
//
// The kernel reports nftables' changes (those of nfqproxy's own table, which changes all the time,
// are ignored); legacy ones are noticed within some seconds. Changes of names without a change of
// a rule, of ipsets and of devices by their index, are not noticed. It needs CAP_NET_ADMIN. After
// an error changes are no longer reported.
func Watch(ctx context.Context, changed func() error) error {
	events, err := nft.NewWatch(concerns)
	if err != nil {
		return fmt.Errorf("watch the host's nat rules: %w", err)
	}
	defer events.Close() // nothing was written
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	w := watcher{events: events.Changed(), failed: events.Failed(), ticks: ticker.C, poll: xtables.NewPoll(natTable).Changed, after: time.After, changed: changed}
	if err := w.run(ctx); err != nil {
		return fmt.Errorf("watch the host's nat rules: %w", err)
	}
	return nil
}

// watcher decides when to call changed.
type watcher struct {
	events <-chan struct{} // nftables may have changed
	failed <-chan error    // no more events will arrive
	ticks  <-chan time.Time
	// poll reports whether the legacy rules differ from those of the previous call.
	poll    func() bool
	after   func(time.Duration) <-chan time.Time
	changed func() error
}

func (w *watcher) run(ctx context.Context) error {
	w.poll()
	failed := w.changed() != nil
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.failed:
			return err
		case <-w.events:
			if !nft.Settle(ctx, w.events, quiet, maxWait, w.after) {
				return nil
			}
			failed = w.changed() != nil
		case <-w.ticks:
			if w.poll() || failed {
				failed = w.changed() != nil
			}
		}
	}
}

// concerns reports whether an event is a change of another program's tables.
func concerns(e nft.Event) bool { return !isOwn(e.Family, e.Table()) }
