package diagnose

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

func examineDump(t *testing.T, text string) []Finding {
	t.Helper()
	d, err := iptables.Read(text, iptables.Options{Family: iptables.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := ExamineNode([]*iptables.Dump{d}, survey.Known{})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestExamineDumps: nothing is wrong with the dumps of real nodes. Listings lack chains, which is a note.
func TestExamineDumps(t *testing.T) {
	dumps, err := filepath.Glob("../../../datapath/paper/iptables/testdata/k*.rules")
	if err != nil || len(dumps) < 5 {
		t.Fatalf("%d dumps, %v", len(dumps), err)
	}
	listings, err := filepath.Glob("../../../datapath/paper/iptables/testdata/*.listing")
	if err != nil || len(listings) < 3 {
		t.Fatalf("%d listings, %v", len(listings), err)
	}
	for _, file := range slices.Concat(dumps, listings) {
		if filepath.Base(file) == byHand {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range worth(examineDump(t, string(b))) {
			t.Errorf("%s: %+v", filepath.Base(file), f)
		}
	}
}

// TestPodsOutside: the Pods of the cluster's DNS are in the network that kube-proxy takes for the Pods', or not.
func TestPodsOutside(t *testing.T) {
	b, err := os.ReadFile("../../../datapath/paper/iptables/testdata/kubeadm-1.22-flannel-node1.rules")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		network string
		dns     string // the endpoints of kube-system/kube-dns
		found   bool
	}{
		"the Pods' network":           {"10.244.0.0/16", "10.244.0.5", false},
		"another network":             {"10.42.0.0/16", "10.244.0.5", true},
		"perhaps of one node":         {"10.42.7.0/24", "10.244.0.5", false},
		"DNS in its node's network":   {"10.42.0.0/16", "192.168.100.1", false},
		"a part of the Pods' network": {"10.244.0.0/17", "10.244.200.7", true},
	} {
		t.Run(name, func(t *testing.T) {
			rules := strings.NewReplacer("! -s 10.244.0.0/16", "! -s "+tt.network, "10.244.0.5", tt.dns, "10.244.2.21", tt.dns).Replace(string(b))
			if got := slices.ContainsFunc(examineDump(t, rules), func(f Finding) bool { return f.Code == PodsOutside }); got != tt.found {
				t.Errorf("found %t, want %t", got, tt.found)
			}
		})
	}
}

// TestExamineRules: rules of others that drop connections, and rules of kube-proxy that are damaged.
func TestExamineRules(t *testing.T) {
	b, err := os.ReadFile("../../../datapath/paper/iptables/testdata/kind-1.29-worker1-after.rules")
	if err != nil {
		t.Fatal(err)
	}
	dump := string(b)
	// edited replaces one text that the dump has.
	edited := func(from, to string) string {
		if !strings.Contains(dump, from) {
			t.Fatalf("no %q in the dump", from)
		}
		return strings.Replace(dump, from, to, 1)
	}
	const forward = "-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\n"
	const invalid = "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n"
	for name, tt := range map[string]struct{ dump, code, text string }{
		"a rule drops all":      {edited(forward, "-A FORWARD -j DROP\n"+forward), "NFQ062", "line 31: a rule that is not kube-proxy's (table filter: -A FORWARD -j DROP) drops connections from pods of this node and from outside to default/kubernetes:https, "},
		"a rule rejects pods":   {edited(forward, "-A FORWARD -s 10.244.0.0/16 -p tcp -j REJECT\n"+forward), "NFQ062 NFQ062", "(table filter: -A FORWARD -s 10.244.0.0/16 -p tcp -j REJECT) rejects connections from pods of this node to "},
		"in kube-proxy's chain": {edited(invalid, "-A KUBE-FORWARD -p tcp -j DROP\n"+invalid), "NFQ062", "(table filter: -A KUBE-FORWARD -p tcp -j DROP) drops connections "},
		"a rule of other ports": {edited(forward, "-A FORWARD -p tcp -m tcp --dport 22 -j DROP\n"+forward), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			found := worth(examineDump(t, tt.dump))
			var codes []string
			for _, f := range found {
				codes = append(codes, string(f.Code))
			}
			if strings.Join(codes, " ") != tt.code || tt.code != "" && !strings.Contains(found[0].Text, tt.text) {
				t.Errorf("%+v, want %s with %q", found, tt.code, tt.text)
			}
		})
	}
	t.Run("a rule of kube-proxy is gone", func(t *testing.T) {
		i := strings.Index(dump, "-A KUBE-SEP-")
		end := strings.Index(dump[i:], "-j DNAT")
		line := strings.LastIndex(dump[:i+end], "\n") + 1
		found := worth(examineDump(t, dump[:line]+dump[line+strings.Index(dump[line:], "\n")+1:]))
		if len(found) != 1 || found[0].Code != RulesInconsistent {
			t.Errorf("%+v", found)
		}
	})
	t.Run("a listing made by hand", func(t *testing.T) {
		b, err := os.ReadFile("../../../datapath/paper/iptables/testdata/" + byHand)
		if err != nil {
			t.Fatal(err)
		}
		if found := worth(examineDump(t, string(b))); len(found) != 2 || found[0].Code != RulesInconsistent {
			t.Errorf("%+v", found)
		}
	})
}

// byHand is a listing that kube-proxy would not write.
const byHand = "nodeport-30007.listing"
