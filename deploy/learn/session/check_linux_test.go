package session_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// checksOf reads checks in YAML.
func checksOf(t testing.TB, checks ...string) []*learn.Check {
	t.Helper()
	steps := "- name: a\n  checks:\n"
	for _, c := range checks {
		steps += "  - " + c + "\n"
	}
	return courseOf(t, unit{steps: steps + task("true")}).Units()[0].Steps[0].Checks
}

// TestChecks: each kind of check, met and not met, with the detail that a student reads.
func TestChecks(t *testing.T) {
	s := start(t, courseOf(t, unit{steps: "- name: read\n", fields: `setup: |
  for i in 1 2 3; do curl -s --max-time 5 http://10.96.0.80/ > /dev/null; done
  curl -s --max-time 5 http://10.96.0.81/ && exit 1
  on outside curl -s --max-time 5 http://172.20.0.2:30080/ > /dev/null
  ping -c 1 -W 5 10.244.0.11 > /dev/null
  echo made > made.txt
`}), "1.1")
	var before time.Time // flows of the setup count
	for _, tc := range []struct {
		check  string
		met    bool
		detail string // a part of it; all is after "="
	}{
		{"flow: {service: default/web, from: shell, state: answered, count: 3}", true, "="},
		{"flow: {service: default/web, from: shell, count: 4}", false, "=3 of 4 so far"},
		{"flow: {service: default/web, from: outside, to: 172.20.0.2, node: node-a, protocol: tcp, verdict: dnat, masquerade: true, masqueradeReason: external, entry: node-port}", true, "="},
		{"flow: {service: default/web, from: shell, masquerade: false}", true, "="},
		{"flow: {service: default/web, from: shell, masquerade: true}", false, "="},
		{"flow: {service: default/web, entry: load-balancer-ip}", false, "="},
		{"flow: {service: default/web, masqueradeReason: hairpin}", false, "="},
		{"flow: {service: default/none, verdict: reject, state: answered}", false, "="},
		{"flow: {service: default/none, verdict: reject, reason: no-endpoints}", true, "="},
		{"flow: {from: 10.244.0.99}", false, "="},
		{"flow: {endpoint: 10.244.0.99}", false, "="},

		{"request: {from: shell, to: 'http://10.96.0.80/'}", true, "="},
		{"request: {from: shell, to: 'http://10.96.0.80/', by: [web-a, web-b], client: shell, count: 4}", true, "="},
		{"request: {from: shell, to: 'http://10.244.0.11/', by: web-a, client: 10.244.0.9}", true, "="},
		{"request: {from: outside, to: 'http://172.20.0.2:30080/', client: node-a}", true, "="},
		{"request: {from: outside, to: 'http://172.20.0.2:30080/', client: outside}", false, "=the server saw the client address 10.244.0.1:"},
		{"request: {from: shell, to: 'http://10.244.0.11/', client: 10.244.0.10}", false, "=the server saw the client address 10.244.0.9:"},
		{"request: {from: shell, to: 'http://10.244.0.11/', by: web-b}", false, "=it was answered by default/web-a"},
		{"request: {from: shell, to: 'http://10.96.0.81/', error: refused}", true, "="},
		{"request: {from: shell, to: 'http://10.96.0.81/', error: timeout}", false, "=its error was: "},
		{"request: {from: shell, to: 'http://10.96.0.80/', error: refused}", false, "=it was answered by default/web-"},
		{"request: {from: shell, to: 'http://10.96.0.81/'}", false, "=it failed: "},
		{"request: {from: shell, to: 'http://10.244.0.99/', timeout: 100ms}", false, "=it failed: "},
		{"request: {from: shell, to: 'http://10.96.0.80/', by: nobody}", false, `no host "nobody" in this lab`},
		{"request: {from: shell, to: 'http://10.96.0.80/', client: nobody}", false, `no host "nobody" in this lab`},
		{"request: {from: shell, to: 'gopher://x'}", false, "gopher"},

		{"entry: {on: node-a, protocol: tcp, from: 10.244.0.9, to: '10.96.0.80:80', replyTo: 10.244.0.9, answered: true}", true, "="},
		{"entry: {on: node-a, from: 192.0.2.10, to: '172.20.0.2:30080', replyTo: 10.244.0.1}", true, "="},
		{"entry: {on: node-a, protocol: icmp, from: 10.244.0.9, to: 10.244.0.11, replyFrom: 10.244.0.11}", true, "="},
		{"entry: {on: node-a, protocol: udp, from: 10.244.0.9}", false, "="},
		{"entry: {on: node-a, protocol: tcp, state: SYN_RECV}", false, "="},
		{"entry: {on: node-a, protocol: tcp, to: '10.96.0.80:80', state: time_wait}", true, "="},
		{"entry: {on: node-a, to: '10.96.0.80:81'}", false, "="},
		{"entry: {on: node-a, replyFrom: 10.244.0.13}", false, "="},
		{"entry: {on: outside}", false, "="},

		{"rule: {on: node-a, matches: 'table ip nfqproxy'}", true, "="},
		{"rule: {on: node-a, matches: '^hook .* priority'}", false, "="},
		{"rule: {on: node-a, matches: 'type filter hook \\w+ priority'}", true, "="},
		{"rule: {on: outside, matches: nfqproxy}", false, "="},

		{"route: {on: shell, to: 10.96.0.80, via: 10.244.0.1, dev: eth0}", true, "="},
		{"route: {on: shell, to: 10.96.0.80, via: 10.244.0.2}", false, "=the route is: 10.96.0.80 via 10.244.0.1 dev eth0 "},
		{"route: {on: shell, to: 10.96.0.80, dev: eth1}", false, "=the route is: 10.96.0.80 via "},
		{"route: {on: outside, to: 172.20.0.2, via: 192.0.2.1}", true, "="},
		{"route: {on: outside, to: 'fd00::1', dev: eth0}", false, "the route is: "},

		{"object: {kind: Service, name: web}", true, "="},
		{"object: {kind: service, name: web, has: {'spec.ports[0].nodePort': 30080, spec.type: 'Node(Port|X)'}}", true, "="},
		{"object: {kind: Service, name: web, has: {spec.type: Node}}", false, "=its spec.type is NodePort"},
		{"object: {kind: Service, name: web, has: {spec.nothing: x}}", false, "=it has no spec.nothing"},
		{"object: {kind: Service, name: web, namespace: other}", false, "=there is none"},
		{"object: {kind: Pod, name: web-a, has: {metadata.labels.app: web, spec.nodeName: node-a}}", true, "="},
		{"object: {kind: Node, name: node-a}", true, "="},
		{"object: {kind: Node, name: node-b}", false, "=there is none"},

		{"run: {script: 'grep -q made made.txt'}", true, "="},
		{"run: {script: 'echo $NFQPROXY_LAB_HOST; cat data.txt', output: '^shell\\na file of the unit$'}", true, "="},
		{"run: {on: outside, script: 'ip -4 address', output: 192.0.2.10/24}", true, "="},
		{"run: {script: 'echo one', output: two}", false, "="},
		{"run: {script: 'exit 3'}", false, "="},
		{"run: {script: 'echo to stderr >&2', output: to stderr}", true, "="},
	} {
		t.Run(tc.check, func(t *testing.T) {
			c := checksOf(t, tc.check, "not: true\n    "+tc.check)
			met, detail := s.Check(t.Context(), c[0], before)
			want, all := strings.CutPrefix(tc.detail, "=")
			if met != tc.met || !strings.Contains(detail, want) || all && !strings.HasPrefix(detail, want) || all && want == "" && detail != "" {
				t.Errorf("met: %v, detail %q, want %v, %q", met, detail, tc.met, tc.detail)
			}
			// The opposite has no detail, but the error of a check that cannot be evaluated.
			met, detail = s.Check(t.Context(), c[1], before)
			if !all && !strings.HasPrefix(tc.detail, "the route") {
				if met || !strings.Contains(detail, tc.detail) {
					t.Errorf("not: met: %v, detail %q, want the error", met, detail)
				}
			} else if met == tc.met || detail != "" {
				t.Errorf("not: met: %v, detail %q", met, detail)
			}
		})
	}
	// Flows from before the step do not count.
	c := checksOf(t, "flow: {service: default/web}")[0]
	if met, _ := s.Check(t.Context(), c, time.Now()); met {
		t.Error("a flow from before the step counts")
	}
}
