package ruleset

import (
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// TestExpected: the sets of a table are found equal without a copy of their elements, also after changes,
// and a set that lacks an element, has another one, or has other data is not.
func TestExpected(t *testing.T) {
	installed(t, onlyServices(), func(r *Ruleset) error {
		all := append(manyServices(30), services(40)[6*30:]...) // services makes six of each
		table := decision.NewTable(1, time.Time{}, auditNode, all)
		if err := r.Follow(table); err != nil {
			return err
		}
		different := func() (names []string) {
			should := r.expect(table)
			for _, s := range r.tables.sets() {
				if s.dynamic {
					continue
				}
				equal, n, err := should.has(s)
				if err != nil {
					t.Fatal(err)
				}
				if have, err := s.table.readElements(s); err != nil || len(have) != n {
					t.Errorf("set %s: %d elements, read %d, %v", s.name, n, len(have), err)
				}
				if !equal {
					names = append(names, s.name)
				}
			}
			if should.details != nil {
				t.Error("the elements were copied")
			}
			return names
		}
		expectDifferent := func(want string) {
			t.Helper()
			if got := different(); want == "" && len(got) > 0 || want != "" && (len(got) != 1 || got[0] != want) {
				t.Errorf("different sets %q, want %q", got, want)
			}
		}
		expectDifferent("")
		copied := r.tables[0].copy.endpoint
		elements, err := r.tables[0].readElements(copied)
		if err != nil {
			return err
		}
		var key, data string
		for key, data = range elements {
			break
		}
		set := func(data string) {
			t.Helper()
			if _, there := elements[key]; there {
				r.delElement(copied, key)
			}
			if delete(elements, key); data != "" {
				r.addElement(copied, key, data)
				elements[key] = data
			}
			if err := r.run(); err != nil {
				t.Fatal(err)
			}
		}
		set("")
		expectDifferent("copy_endpoint")
		set("\xc0\x00\x02\x01" + data[4:])
		expectDifferent("copy_endpoint")
		set(data)
		expectDifferent("")
		r.addElement(r.tables[0].service, addrBytes(auditNode.Addresses[0])+protoPortBytes(decision.TCP, 7), "")
		if err := r.run(); err != nil {
			return err
		}
		expectDifferent("service")
		return nil
	})
}
