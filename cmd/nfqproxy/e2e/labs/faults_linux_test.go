package labs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// brief are connections of the shell to the service that end after a fifth of a second: their flows are then without an answer.
func brief(n int) string {
	return fmt.Sprintf("for i in $(seq %d); do timeout 0.2 bash -c 'echo > /dev/tcp/10.96.118.136/80'; done; true", n)
}

// spoofed is a connection whose source is an address of another node's pods.
const spoofed = "ip addr replace 10.244.2.77/32 dev lo; ip route replace 10.96.118.136/32 via 10.244.1.1 dev eth0 onlink src 10.244.2.77; " +
	"timeout 0.2 bash -c 'echo > /dev/tcp/10.96.118.136/80'; ip route del 10.96.118.136/32; ip addr del 10.244.2.77/32 dev lo; true"

// faultCase is a fault, and what is said about it.
type faultCase struct {
	fault   string
	add     []string // "lab fault add" and so on, without --lab
	provoke string   // by the shell
	ask     []string // why; nil: about the service
	code    string
	text    string // of the finding, a regular expression: with the node, the object or rule, and the count
	do      string // the command that mends it, likewise
}

// faultCases are the built-in faults, by the row of the table in docs/reference/why.md.
var faultCases = []faultCase{
	{
		"firewall", []string{"fault", "add", "firewall", "kind-worker2", "--to", "10.244.2.2", "--port", "80"}, brief(6), nil, "NFQ063",
		`node kind-worker2 drops flows to default/my-nginx-service after they were translated: rule ip daddr 10\.244\.2\.2 tcp dport 80 counter drop \(nft, table inet filter-\d+\) matches \d+ recent flows? without an answer, to 10\.244\.2\.2:80; it has counted \d+ packet`,
		`on node kind-worker2: nft delete rule inet filter-\d+ filter handle \d+`,
	},
	{
		"firewall --reject", []string{"fault", "add", "firewall", "kind-worker2", "--to", "10.244.2.2", "--port", "80", "--reject"}, brief(6), nil, "NFQ063",
		`node kind-worker2 rejects flows to default/my-nginx-service after they were translated: rule ip daddr 10\.244\.2\.2 tcp dport 80 counter reject\S* .* it has counted \d+ packet`,
		`on node kind-worker2: nft delete rule inet filter-\d+ filter handle \d+`,
	},
	{
		"full-table", []string{"fault", "add", "full-table", "kind-worker2", "--connections", "3"}, brief(12), nil, "NFQ063",
		`node kind-worker2 drops flows to default/my-nginx-service .*: rule ct state new counter drop .* it has counted \d+ packets?; set connections has 3 of 3 elements, so it accepts no more`,
		`on node kind-worker2: nft delete rule inet filter-\d+ filter handle \d+`,
	},
	{
		"loss", []string{"fault", "add", "loss", "kind-worker2", "--percent", "30"}, brief(12), nil, "NFQ075",
		`node kind-worker2 drops some packets of flows to default/my-nginx-service: rule numgen random mod 100000 < 30000 counter drop \(nft, table inet filter-\d+, chain filter\) .* it has counted \d+ packets?, and \d+ recent flow`,
		`on node kind-worker2: nft delete rule inet filter-\d+ filter handle \d+`,
	},
	{
		"route", []string{"fault", "add", "route", "kind-worker", "--to", "10.244.2.2"}, brief(6), nil, "NFQ076",
		`node kind-worker drops packets to 10\.244\.2\.2: its route 10\.244\.2\.2/32 is of type blackhole; \d+ recent flows? to default/my-nginx-service got no answer`,
		`on node kind-worker: ip route del blackhole 10\.244\.2\.2/32`,
	},
	{
		"route --via", []string{"fault", "add", "route", "kind-worker", "--to", "10.244.2.0/24", "--via", "172.20.0.1"}, brief(6), nil, "NFQ076",
		`the route of node kind-worker to 10\.244\.2\.2 \(10\.244\.2\.0/24\) leads via 172\.20\.0\.1, which is not a node; the routes to Pods of other nodes lead via these nodes; \d+ recent flow`,
		`on node kind-worker: ip route replace 10\.244\.2\.0/24 via 172\.20\.0\.3`,
	},
	{
		"rp-filter", []string{"fault", "add", "rp-filter", "kind-worker"}, spoofed, nil, "NFQ077",
		`node kind-worker drops packets if the route to their source uses another device \(rp_filter=1 on eth0, .*\): \d+ packets? since its start \(IPReversePathFilter\)`,
		`on node kind-worker: sysctl -w net\.ipv4\.conf\.all\.rp_filter=2`,
	},
	{
		"stale-entry", []string{"fault", "add", "stale-entry", "kind-worker", "--from", "10.244.1.9:40000", "--to", "10.96.0.10", "--port", "53", "--endpoint", "10.244.0.99:53"}, "", []string{"shell", "kube-dns.kube-system:53", "--protocol", "udp"}, "NFQ044",
		`on node kind-worker 1 UDP connection entry to kube-system/kube-dns:dns \(10\.96\.0\.10:53\), such as that of 10\.244\.1\.9:40000, leads to 10\.244\.0\.99:53, which is not an endpoint`,
		`on node kind-worker: conntrack -D -p udp --orig-dst 10\.96\.0\.10 --orig-port-dst 53 --reply-src 10\.244\.0\.99`,
	},
	{
		"delay", []string{"fault", "add", "delay", "kind-worker", "--delay", "20ms"}, "", nil, "NFQ078",
		`node kind-worker delays packets that leave through eth0`, `on node kind-worker: tc -s qdisc show dev eth0; tc qdisc del dev eth0 root`,
	},
	{
		"freeze", []string{"fault", "add", "freeze", "kind-worker"}, "", nil, "NFQ048",
		`kind-worker: the daemon does not answer: no answer for .*: the daemon hangs or is stopped`, `its process is stopped \(state T\); on node kind-worker: kill -CONT \d+`,
	},
	{
		"kill", []string{"fault", "add", "kill", "kind-worker"}, "", nil, "NFQ048",
		`kind-worker: the daemon does not answer: its process does not run`, `on node kind-worker: systemctl restart nfqproxy, or delete its Pod; in a lab: nfqproxy lab fault rm`,
	},
	{
		"node down", []string{"node", "down", "kind-worker2"}, "", nil, "NFQ079",
		`node kind-worker2 is not ready \(condition Ready is Unknown\): 1 Pod on it gets no new flows`, `nfqproxy lab node up kind-worker2`,
	},
}

// TestFaultsAreNamed: doctor, why, flows and the page name the cause of each fault of a lab: the node, the object or rule, the
// count and what mends it. Without the fault doctor is silent again. It runs before the parallel tests, as TestWhy.
func TestFaultsAreNamed(t *testing.T) {
	for _, tool := range []string{"bash", "nft", "ip"} {
		netnstest.RequireTool(t, tool)
	}
	dir := filepath.Join(t.TempDir(), "mine")
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", "kind", dir); code != 0 {
		t.Fatal(stderr)
	}
	text := strings.Replace(e2etest.ReadFile(t, filepath.Join(dir, "kind.yaml")), "name: kind\n", "name: faulty\n", 1)
	startLab(t, e2etest.WriteFile(t, "faulty.yaml", []byte(text)))
	api, err := lab.FlowAPIOf("faulty")
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (code int, stdout, stderr string) {
		return e2etest.Run(t, nil, append(args, "--lab", "faulty")...)
	}
	shell := func(script string) {
		e2etest.Run(t, nil, "lab", "exec", "--lab", "faulty", "shell", "--", "bash", "-c", script)
	}
	checkDocumentedFaults(t)
	for _, tt := range faultCases {
		if !netnstest.Selected(tt.fault, "firewall", "route", "stale-entry", "freeze") {
			continue
		}
		t.Run(tt.fault, func(t *testing.T) {
			if code, stdout, stderr := run(append([]string{"lab"}, tt.add...)...); code != 0 {
				if strings.Contains(stdout+stderr, "the kernel has no netem") {
					t.Skip("the kernel has no netem")
				}
				t.Fatal(stdout, stderr)
			}
			var stdout string
			defer func() {
				if t.Failed() {
					t.Log(stdout)
				}
			}()
			is := regexp.MustCompile(tt.text)
			// Daemons compare all UDP entries every 30 seconds, and remove a stale one.
			fleeting := tt.fault == "stale-entry"
			named := func(by string, ask func() bool) {
				e2etest.Eventually(t, e2etest.Timeout, "nfqproxy "+by+" names "+tt.fault, func() bool {
					if ask() {
						return true
					}
					if fleeting {
						run("lab", "fault", "rm", "--all")
						run(append([]string{"lab"}, tt.add...)...)
					}
					return false
				})
			}
			named("doctor", func() bool {
				var code int
				if tt.provoke != "" {
					shell(tt.provoke)
				}
				code, stdout, _ = run("doctor")
				return code == 1 && regexp.MustCompile(`(?m)^(error|warning) `+tt.code+": "+tt.text).MatchString(stdout)
			})
			if !regexp.MustCompile(`(?m)^  do +`+tt.do).MatchString(stdout) && !regexp.MustCompile(`(?m)^  do .*`+tt.do).MatchString(stdout) {
				t.Errorf("doctor has not the command %s", tt.do)
			}
			ask := tt.ask
			if ask == nil {
				ask = []string{"shell", "my-nginx-service:80"}
			}
			named("why", func() bool {
				_, answer, _ := run(append([]string{"why"}, ask...)...)
				ok := is.MatchString(answer) && strings.Contains(answer, tt.code) && regexp.MustCompile(tt.do).MatchString(answer)
				if !ok && !fleeting {
					t.Fatalf("why:\n%s", answer)
				}
				return ok
			})
			named("flows", func() bool {
				_, _, notes := run("flows")
				ok := is.MatchString(notes) && strings.Contains(notes, tt.code)
				if !ok && !fleeting {
					t.Fatalf("flows:\n%s", notes)
				}
				return ok
			})
			if !fleeting && netnstest.Selected(tt.fault, "firewall", "freeze") {
				t.Run("page", func(t *testing.T) {
					p := webtest.Open(t, api.URL)
					onPage(p, &tt)
					if tt.fault == "freeze" {
						everyView(p)
					}
				})
			}
			over := []string{"lab", "fault", "rm", "--all"}
			if tt.add[0] == "node" {
				over = []string{"lab", "node", "up", tt.add[2]}
			}
			if code, stdout, stderr := run(over...); code != 0 {
				t.Fatal(stdout, stderr)
			}
			e2etest.Eventually(t, e2etest.Timeout, "doctor is silent without "+tt.fault, func() bool {
				run("lab", "ask", "shell", "http://my-nginx-service/", "--count", "20")
				var code int
				code, stdout, _ = run("doctor")
				return code == 0
			})
		})
	}
}

// checkDocumentedFaults: docs/reference/why.md has the same table, and it has all faults.
func checkDocumentedFaults(t *testing.T) {
	t.Helper()
	rows := documentedFaults(t)
	kinds := make(map[string]bool)
	for _, tt := range faultCases {
		kinds[tt.add[2]] = true
		want := fmt.Sprintf("| `%s` | %s |", tt.fault, strings.Join([]string{tt.code, tt.code, tt.code, tt.code}, " | "))
		if !rows[want] {
			t.Errorf("docs/reference/why.md lacks the row %s", want)
		}
		delete(rows, want)
	}
	for row := range rows {
		t.Errorf("no case for the row %s of docs/reference/why.md", row)
	}
	for _, k := range labapi.FaultKinds {
		if !kinds[k.Name] {
			t.Errorf("no case for the fault %s", k.Name)
		}
	}
}

// documentedFaults are the rows of the table in docs/reference/why.md.
func documentedFaults(t *testing.T) map[string]bool {
	t.Helper()
	rows := make(map[string]bool)
	for line := range strings.Lines(e2etest.ReadFile(t, "../../../../docs/reference/why.md")) {
		if regexp.MustCompile("^\\| `[a-z -]+` \\| NFQ").MatchString(line) {
			rows[strings.TrimSpace(line)] = true
		}
	}
	return rows
}

// onPage waits until the page's Overview has the finding, with what to do about it, and the page of the Service that is concerned as well.
func onPage(p *webtest.Page, tt *faultCase) {
	p.Helper()
	has := func(text string) string {
		return fmt.Sprintf("[...document.querySelectorAll('.finding[data-code=%s]')].some(x => new RegExp(%s).test(x.textContent))", tt.code, webtest.Quote(text))
	}
	p.GoTo("#/overview")
	p.WaitFor("findings", "!!document.querySelector('.finding')")
	p.Run(chromedp.Evaluate("document.querySelector('.findings > .button')?.click()", nil)) // all of them
	p.WaitFor("the finding", has(tt.text)+" && "+has(tt.do))
	p.WaitFor("it is counted", "/^[1-9]/.test(document.querySelector('.wrong-now [role=status]').textContent)")
}

// everyView: the page shows every view while kind-worker is silent, and names it above each.
func everyView(p *webtest.Page) {
	p.Helper()
	for _, v := range []struct{ hash, shows string }{
		{"#/overview", "[...document.querySelectorAll('.node-list > li')].some(x => x.textContent.includes('kind-worker') && x.textContent.includes('no answer for '))"},
		{"#/map", "!!document.querySelector('.map .empty, .map svg')"},
		{"#/flows", "!!document.querySelector('.flows .tablebox')"},
		{"#/services", "document.body.innerText.includes('my-nginx-service')"},
		{"#/services/default/my-nginx-service", "document.querySelectorAll('.endpoints-table tbody tr').length > 0"},
		{"#/why?from=shell&to=my-nginx-service:80", "!!document.querySelector('.inquiry .answer .pill')"},
		{"#/lab", "document.querySelectorAll('#lab-nodes > li').length === 3"},
	} {
		if strings.HasPrefix(v.hash, "#/why") { // the client's node cannot decide
			p.ExpectRefusals(1)
		}
		p.GoTo(v.hash)
		p.WaitFor(v.hash, v.shows+" && document.getElementById('silent').offsetParent && document.getElementById('silent').textContent.startsWith('kind-worker: the daemon does not answer: no answer for ')")
	}
}
