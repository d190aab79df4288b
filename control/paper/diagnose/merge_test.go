package diagnose

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestMergeNodes: a cause is listed once, whatever the lines and files are in which nodes have it.
func TestMergeNodes(t *testing.T) {
	drop := func(text string) Finding {
		return Finding{Code: HostRuleDrops, Text: text, Do: "remove line 7"}
	}
	note := Finding{Code: RulesIncomplete, Text: "not all"}
	merged := MergeNodes([]OfOneNode{
		{"a", []Finding{note, drop("a.tgz/iptables-nft.rules: line 7: -j DROP drops them")}},
		{"b", []Finding{drop("b/iptables-legacy.rules: lines 12, 13 and 40: -j DROP drops them"), drop("line 9: -j REJECT drops them")}},
		{"c", []Finding{drop("line 7: -j DROP drops them"), drop("line 8: -j DROP drops them")}},
	})
	var got []string
	for _, f := range merged {
		got = append(got, string(f.Code)+" "+f.Text+" on "+string(f.Nodes))
	}
	want := []string{
		"NFQ062 a.tgz/iptables-nft.rules: line 7: -j DROP drops them on a,b,c", "NFQ062 line 9: -j REJECT drops them on b", "NFQ061 not all on a",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	data, err := json.Marshal(merged[0])
	if err != nil || !strings.Contains(string(data), `"nodes":["a","b","c"]`) {
		t.Errorf("%s, %v", data, err)
	}
	var names NodeNames
	if err := json.Unmarshal([]byte(`["a","b"]`), &names); err != nil || names != "a,b" {
		t.Errorf("%q, %v", names, err)
	}
}
