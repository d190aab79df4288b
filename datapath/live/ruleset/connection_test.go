package ruleset

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// owned runs a test with a ruleset whose tables a connection owns.
func owned(t *testing.T, test func(*Connection, *Ruleset, *decision.Table) error) {
	t.Helper()
	netnstest.RequireTool(t, "nft")
	inNamespace(t, func() error {
		if err := probeOwner(); err != nil {
			netnstest.Missing(t, "tables with an owner (Linux 6.9)")
		}
		c, err := OpenConnection(true)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // a test may have closed it
		table := decision.NewTable(1, time.Time{}, auditNode, services(3))
		r, err := c.Install(ownedSpec(t), table, false)
		if err != nil {
			return err
		}
		return errors.Join(test(c, r, table), r.Close())
	})
}

// ownedSpec is the ruleset of these tests.
func ownedSpec(t *testing.T) Spec {
	t.Helper()
	s := onlyServices()
	var err error
	if s.Native, err = Probe(); err != nil {
		t.Fatal(err)
	}
	return s
}

// isOwned reports whether other connections cannot change the tables.
func isOwned(t *testing.T) bool {
	t.Helper()
	other, err := OpenConnection(false)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close() //nolint:errcheck // run has reported every error
	refused := 0
	for _, f := range []family{ipv4, ipv6} {
		k := &kernel{conn: other, table: TableName}
		k.delTable(&table{family: f})
		k.addTable(&table{family: f}, 0)
		k.delTable(&table{family: f})
		k.delTable(&table{family: f}) // fails, so that nothing changes
		switch err := k.run(); {
		case errors.Is(err, unix.EPERM):
			refused++
		case !errors.Is(err, unix.ENOENT):
			t.Fatal(err)
		}
	}
	if refused == 1 {
		t.Fatal("only one of the tables is owned")
	}
	return refused == 2
}

// TestOwned: no other program changes or flushes tables that are owned, and the owner changes them by the
// ruleset and by the sets of seen flows.
func TestOwned(t *testing.T) {
	owned(t, func(c *Connection, r *Ruleset, table *decision.Table) error {
		before := elements(t, r)
		changeRules(t, "flush ruleset")
		if after := elements(t, r); len(before) == 0 || before["service4"] != 9 || after["service4"] != 9 {
			t.Errorf("elements %v, before the flush %v", after, before)
		}
		if done, err := r.Audit(table, true); !done.None() || err != nil {
			t.Errorf("found %v, %v", done.Found, err)
		}
		if !isOwned(t) {
			t.Error("others can change the tables")
		}
		next := decision.NewTable(2, time.Time{}, auditNode, services(5))
		if err := r.Follow(next); err != nil {
			return err
		}
		remember(t, r, flows(1000, 2))
		if err := c.Forget(flows(1000, 1)); err != nil {
			return err
		}
		if n := elements(t, r); n["service4"] != 15 || n["seen4"] != 1 || n["seen6"] != 1 {
			t.Errorf("elements %v", n)
		}
		if isChanged(r) {
			t.Error("our own changes are taken for those of others")
		}
		return nil
	})
}

// TestOwnedAgain: after an error the connection is another one, which owns the tables, too.
func TestOwnedAgain(t *testing.T) {
	owned(t, func(c *Connection, r *Ruleset, table *decision.Table) error {
		r.delChain(r.tables[0], "no such chain")
		if err := r.run(); !errors.Is(err, unix.ENOENT) {
			t.Fatalf("error %v", err)
		}
		if isOwned(t) {
			t.Error("owned by a connection that is closed")
		}
		if err := r.Follow(decision.NewTable(2, time.Time{}, auditNode, services(5))); err != nil {
			return err
		}
		if !isOwned(t) {
			t.Error("not owned after the next change")
		}
		if err := c.Forget(flows(1000, 1)); err != nil {
			t.Error(err)
		}
		return nil
	})
}

// TestOwnedByNext: a process that ends leaves tables to the next one, as does one that is replaced. If that
// fails, the first one owns them again.
func TestOwnedByNext(t *testing.T) {
	owned(t, func(c *Connection, r *Ruleset, table *decision.Table) error {
		next, err := OpenConnection(true)
		if err != nil {
			return err
		}
		defer next.Close() //nolint:errcheck // the other errors matter
		if _, err := next.Install(ownedSpec(t), table, true); !errors.Is(err, unix.EPERM) {
			t.Errorf("installed into tables that another connection owns: error %v", err)
		}
		r.Release()
		if isOwned(t) {
			t.Error("owned after the release")
		}
		if err := c.Forget(flows(1000, 1)); err != nil {
			t.Errorf("after the release: %v", err)
		}
		if err := r.Resume(); err != nil {
			return err
		}
		if !isOwned(t) {
			t.Error("not owned after the resumption")
		}
		r.Release()
		heir, err := next.Install(ownedSpec(t), table, true)
		if err != nil {
			return err
		}
		if !heir.adopted || !isOwned(t) {
			t.Errorf("adopted: %v", heir.adopted)
		}
		return errors.Join(heir.Close(), next.Close())
	})
}

// TestOwnedLater: tables that were made without an owner are adopted, and have none.
func TestOwnedLater(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	inNamespace(t, func() error {
		first, err := install(t, onlyServices())
		if err != nil {
			return err
		}
		if err := first.Close(); err != nil {
			return err
		}
		c, err := OpenConnection(true)
		if err != nil {
			return err
		}
		r, err := c.Install(ownedSpec(t), decision.NewTable(1, time.Time{}, auditNode, services(3)), false)
		if err != nil {
			return err
		}
		if !r.adopted || isOwned(t) {
			t.Errorf("adopted: %v; the tables must stay, which have no owner", r.adopted)
		}
		// If all is lost, they are made anew.
		changeRules(t, "flush ruleset")
		done, err := r.Audit(r.followed, true)
		if err != nil || !slices.Contains(done.Found, "the table is missing or dormant (ip)") {
			t.Errorf("found %q, %v", done.Found, err)
		}
		if owns := probeOwner() == nil; isOwned(t) != owns {
			t.Errorf("owned: %v; want %v", !owns, owns)
		}
		if tables, err := Cleanup(); len(tables) > 0 && c.flags != 0 || err == nil && c.flags != 0 {
			t.Errorf("others removed %v, %v", tables, err)
		}
		if err := r.Remove(); err != nil {
			return err
		}
		tables, err := nft.Tables(nft.DumpOnce, unix.NFPROTO_UNSPEC)
		if len(tables) > 0 {
			t.Errorf("tables %v are left", tables)
		}
		return errors.Join(err, c.Close())
	})
}
