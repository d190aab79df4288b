package labfile

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// TestMarshal: what is written of a lab is read as the same.
func TestMarshal(t *testing.T) {
	texts := map[string][]byte{"small": []byte(small)}
	for _, name := range labs.Names() {
		data, err := labs.File(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), "\ndeployments:") { // which no lab has that is written: those of objects have pods
			texts[name] = data
		}
	}
	odd := strings.NewReplacer("small", "null", "node-a", "1e3", "node-b", "0x10", "name: web", "name: true", "outside", "y", "[more]", `["a: b, #c", "no"]`).Replace(small)
	texts["odd"] = []byte(odd)
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			want, err := Parse(name, []byte(strings.NewReplacer("name: null", `name: "null"`, "1e3", `"1e3"`, "0x10", `"0x10"`, "name: true", `name: "true"`, "name: y", `name: "y"`).Replace(string(text))))
			if err != nil {
				t.Fatal(err)
			}
			data := want.Marshal([]string{"A comment.", "", "- no item"})
			got, err := Parse(name, data)
			if err != nil {
				t.Fatalf("%v\n%s", err, data)
			}
			if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
				t.Errorf("(-want +got)\n%s\n%s", d, data)
			}
		})
	}
}
