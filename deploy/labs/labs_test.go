package labs_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// chains are the names of the chains of a lab's services that have endpoints, sorted.
func chains(t *testing.T, lab string) []string {
	t.Helper()
	data, err := labs.File(lab)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), lab+".yaml")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	objects, err := labfile.Load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	services, _ := servicetable.Build(&objects.Objects, servicetable.NodeConfig{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	var names []string
	for _, s := range services {
		if !s.HasEndpoints {
			continue // a service without endpoints has no chains
		}
		names = append(names, s.ServiceChain())
		if s.NodePort != 0 {
			names = append(names, s.ExternalChain())
		}
		for _, e := range s.UsableEndpoints(decision.Cluster) {
			names = append(names, s.EndpointChain(e.AddrPort))
		}
	}
	slices.Sort(names)
	return names
}

// TestChainsAreThoseOfTheDumps: the built-in labs have the names and addresses of
// published nodes, and so their chain names.
func TestChainsAreThoseOfTheDumps(t *testing.T) {
	for lab, dump := range map[string]string{"kind": "kind-1.29-worker1-after", "flannel": "kubeadm-1.22-flannel-node1"} {
		t.Run(lab, func(t *testing.T) {
			content, err := os.ReadFile(filepath.Join("../../control/servicetable/testdata", dump+".chains"))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := chains(t, lab), strings.Fields(string(content)); !slices.Equal(got, want) {
				t.Errorf("chains:\n %s\nwant:\n %s", strings.Join(got, "\n "), strings.Join(want, "\n "))
			}
		})
	}
}

// TestChainsAreThoseOfTheListings: the same of nodes of which only some chains were
// published.
func TestChainsAreThoseOfTheListings(t *testing.T) {
	for lab, want := range map[string][]string{
		"grafana-31577": {"KUBE-SVC-OIUYAK75OI4PJHUN", "KUBE-SEP-LAT64KIID4KEQMCP", "KUBE-SVC-NPX46M4PTMTKRN6Y", "KUBE-SVC-TCOU7JCQXEZGVUNU", "KUBE-SVC-JD5MR3NA4I4DYORP"},
		"kube-dns-hairpin": {
			"KUBE-SVC-ERIFXISQEP7F7OF4", "KUBE-SEP-V7KWRXXOBQHQVWAT", "KUBE-SEP-BWCLCJLZ5KI6FXBW",
			"KUBE-SVC-TCOU7JCQXEZGVUNU", "KUBE-SVC-QMWWTXBG7KFJQKLO", "KUBE-SVC-NPX46M4PTMTKRN6Y",
		},
	} {
		got := chains(t, lab)
		for _, name := range want {
			if !slices.Contains(got, name) {
				t.Errorf("lab %s has no chain %s, only\n %s", lab, name, strings.Join(got, "\n "))
			}
		}
	}
}

// TestReadme: it names every lab, and the pages of the course that it links only chains that one of them has.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := text
	for _, unit := range []string{"3-outside/1-node-port", "3-outside/5-hairpin", "5-rules/1-published-nodes"} {
		page, err := os.ReadFile("../learn/units/" + unit + "/reference.md")
		if err != nil {
			t.Fatal(err)
		}
		pages = slices.Concat(pages, page)
	}
	known := []string{"KUBE-SVC-ABCD1234EFGH5678", "KUBE-EXT-ABCD1234EFGH5678"} // made up by the author of a listing
	for _, lab := range labs.Names() {
		if !strings.Contains(string(text), "| ["+lab+"]("+lab+".yaml) |") {
			t.Errorf("the table does not have lab %s", lab)
		}
		known = append(known, chains(t, lab)...)
	}
	for _, name := range regexp.MustCompile(`KUBE-(SVC|SEP|EXT)-[A-Z0-9]+`).FindAllString(string(pages), -1) {
		if !slices.Contains(known, name) {
			t.Errorf("no lab has the chain %s", name)
		}
	}
}
