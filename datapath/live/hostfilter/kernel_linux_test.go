package hostfilter

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// node is a network namespace with a table "filter" in it.
type node struct {
	xtablestest.Node
	place
}

// forEach runs a test for each back end and family.
func forEach(t *testing.T, test func(n node)) {
	for _, p := range places {
		t.Run(fmt.Sprintf("%s/%s", p.Backend, p.Family), func(t *testing.T) {
			netnstest.RequireTool(t, p.tool())
			test(node{xtablestest.New(t), p})
		})
	}
}

// tool is the program of the back end: iptables-nft, ip6tables-legacy-save.
func (p place) tool(suffix ...string) string {
	return xtablestest.Tool(p.Backend, p.Family, suffix...)
}

// iptables runs one command of the table's program after the other.
func (n node) iptables(commands ...string) {
	n.Helper()
	for _, c := range commands {
		n.Exec("", n.tool(), append([]string{"-w"}, strings.Fields(c)...)...)
	}
}

// save is what the table's program prints, with counters if there are arguments.
func (n node) save(args ...string) string {
	n.Helper()
	out := n.Exec("", n.tool("save"), append([]string{"-t", "filter"}, args...)...)
	out = xtablestest.WithoutRemarks(out)
	if len(args) == 0 {
		out = regexp.MustCompile(`(?m) \[\d+:\d+\]$`).ReplaceAllString(out, "")
	}
	return out
}

func (n node) sync(k *Keeper) {
	n.Helper()
	if err := n.NS.Do(func() error { k.Sync(); return nil }); err != nil {
		n.Fatal(err)
	}
	if f := k.Fault(); f != "" {
		n.Fatal(f)
	}
}

// set changes what the host's firewall must accept.
func (k *Keeper) set(s Spec) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tables.spec = s
	k.changed()
}

func keeper(s Spec) *Keeper {
	k := New(slog.New(slog.DiscardHandler))
	k.set(s)
	return k
}

// check is a Spec with health check node ports in both families.
func check(ports ...uint16) Spec {
	s := Spec{Mark: 0x4000, HealthChecks: make(map[decision.Family][]HealthCheck)}
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		for _, p := range ports {
			s.HealthChecks[f] = append(s.HealthChecks[f], HealthCheck{decision.ServiceName{Namespace: "default", Name: "web"}, p})
		}
	}
	return s
}

// docker is what a firewall of others looks like.
var docker = []string{
	"-P FORWARD DROP", "-N DOCKER", "-N DOCKER-USER", "-A DOCKER-USER -j RETURN",
	"-A FORWARD -j DOCKER-USER", "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-A FORWARD -o docker0 -j DOCKER",
	"-A INPUT -p tcp --dport 22 -j ACCEPT", "-P INPUT DROP",
}

const dockerSaved = `*filter
:INPUT DROP
:FORWARD DROP
:OUTPUT ACCEPT
:DOCKER -
:DOCKER-USER -
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A DOCKER-USER -j RETURN
COMMIT
`

const withOurs = `*filter
:INPUT DROP
:FORWARD DROP
:OUTPUT ACCEPT
:DOCKER -
:DOCKER-USER -
:NFQPROXY-FORWARD -
:NFQPROXY-HEALTHCHECK -
-A INPUT -m comment --comment "nfqproxy health check service ports" -j NFQPROXY-HEALTHCHECK
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -m comment --comment "nfqproxy forwarding rules" -j NFQPROXY-FORWARD
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A DOCKER-USER -j RETURN
-A NFQPROXY-FORWARD -m comment --comment "nfqproxy forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A NFQPROXY-FORWARD -m comment --comment "nfqproxy forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A NFQPROXY-HEALTHCHECK -p tcp -m comment --comment "default/web health check node port" -m tcp --dport 31000 -j ACCEPT
COMMIT
`

func (n node) saved(want string) {
	n.Helper()
	if got := n.save(); sorted(got) != sorted(want) {
		n.Fatalf("saved\n%s\nwant\n%s", got, want)
	}
}

// sorted puts the chains into one order; the rules of each chain stay in theirs.
func sorted(text string) string {
	lines := strings.SplitAfter(text, "\n")
	slices.SortStableFunc(lines, func(a, b string) int {
		key := func(l string) string {
			f := strings.Fields(l)
			if len(f) > 1 && f[0] == "-A" {
				return "a " + f[1]
			}
			if strings.HasPrefix(l, ":") {
				return "  " + l
			}
			return map[bool]string{true: " ", false: "z"}[strings.HasPrefix(l, "*")]
		}
		return strings.Compare(key(a), key(b))
	})
	return strings.Join(lines, "")
}

// TestRules: the programs of iptables print our rules, and take them back.
func TestRules(t *testing.T) {
	forEach(t, func(n node) {
		n.iptables(docker...)
		n.saved(dockerSaved)
		k := keeper(check(31000))
		n.sync(k)
		n.saved(withOurs)
		n.Exec(n.save(), n.tool("restore"))
		n.saved(withOurs)
		// Others insert theirs above: ours stay where they are, as kube-proxy's do.
		n.iptables("-I FORWARD -j DOCKER-USER")
		n.sync(k)
		n.saved(strings.Replace(withOurs, "-A FORWARD -m", "-A FORWARD -j DOCKER-USER\n-A FORWARD -m", 1))
		n.iptables("-D FORWARD -j DOCKER-USER")

		k.set(check(31000, 31001))
		n.sync(k)
		line := "-A NFQPROXY-HEALTHCHECK -p tcp -m comment --comment \"default/web health check node port\" -m tcp --dport 31000 -j ACCEPT\n"
		n.saved(strings.Replace(withOurs, line, line+strings.Replace(line, "31000", "31001", 1), 1))
		if k.Repaired() > 1 { // what iptables-nft-restore wrote may have been put into our form
			n.Errorf("%d repairs", k.Repaired())
		}
		k.set(check())
		n.sync(k)
		n.saved(strings.Replace(withOurs, line, "", 1))
	})
}

// TestRestored: rules of ours that iptables' programs saved and restored are as we want them. Of
// nftables they write some matches in nftables' own expressions, which are put into our form
// once; those that they write as extensions are not.
func TestRestored(t *testing.T) {
	forEach(t, func(n node) {
		n.iptables(docker...)
		spec := check(31000)
		changed := func() (all []string) {
			n.Helper()
			if err := n.NS.Do(func() (err error) { all, _, err = n.place.sync(spec, false); return err }); err != nil {
				n.Fatal(err)
			}
			return all
		}
		if all := changed(); len(all) != 4 {
			n.Errorf("made %q, want two chains and the jumps to them", all)
		}
		n.Exec(n.save(), n.tool("restore"))
		rewritten := []string{"chain NFQPROXY-FORWARD has other rules", "chain NFQPROXY-HEALTHCHECK has other rules"}
		for _, what := range changed() {
			if n.Backend == xtables.Legacy || !slices.Contains(rewritten, what) {
				n.Errorf("restored: %s", what)
			}
		}
		if all := changed(); len(all) > 0 {
			n.Errorf("repaired twice: %q", all)
		}
		n.saved(withOurs)
	})
}

// TestConditionalJump: a jump to our chain that not all packets take is not the one we want.
func TestConditionalJump(t *testing.T) {
	forEach(t, func(n node) {
		n.iptables(docker...)
		k := keeper(check(31000))
		n.sync(k)
		const ours = `-A FORWARD -m comment --comment "nfqproxy forwarding rules" -j NFQPROXY-FORWARD`
		for _, condition := range []string{"-i eth9", "-p tcp", "-m mark --mark 0x1"} {
			conditional := strings.Replace(ours, "-A FORWARD", "-A FORWARD "+condition, 1)
			n.Exec("*filter\n"+strings.Replace(conditional, "-A FORWARD", "-R FORWARD 1", 1)+"\nCOMMIT\n", n.tool("restore"), "--noflush", "-w")
			n.sync(k)
			n.saved(strings.Replace(withOurs, ours, ours+"\n"+conditional, 1))
			n.iptables("-D FORWARD 2")
		}
	})
}

// TestRemove: what others have stays as it was, in its place.
func TestRemove(t *testing.T) {
	forEach(t, func(n node) {
		n.iptables(docker...)
		before := n.save()
		n.sync(keeper(check(31000)))
		var removed []string
		remove := func() (err error) { removed, err = Remove(); return err }
		if err := n.NS.Do(remove); err != nil {
			n.Fatal(err)
		}
		want := []string{fmt.Sprintf("%s: chain NFQPROXY-FORWARD", n.place), fmt.Sprintf("%s: chain NFQPROXY-HEALTHCHECK", n.place)}
		if !slices.Equal(removed, want) {
			n.Errorf("removed %q, want %q", removed, want)
		}
		if got := n.save(); got != before {
			n.Errorf("left\n%s\nwant\n%s", got, before)
		}
		if err := n.NS.Do(remove); err != nil || len(removed) > 0 {
			n.Errorf("removed once more: %q, %v", removed, err)
		}
	})
}

// TestCounters: the rules of others keep their counters.
func TestCounters(t *testing.T) {
	forEach(t, func(n node) {
		if n.Backend == xtables.NFT && n.Family == decision.IPv6 {
			n.Skip("ip6tables-nft-restore does not load counters")
		}
		n.Exec("*filter\n:FORWARD DROP [3:180]\n[7:420] -A FORWARD -i eth9 -j ACCEPT\nCOMMIT\n", n.tool("restore"), "--counters")
		n.sync(keeper(check(31000)))
		if got := n.save("--counters"); !strings.Contains(got, "[7:420] -A FORWARD -i eth9 -j ACCEPT") {
			n.Errorf("saved\n%s", got)
		}
	})
}

// TestNothingToAccept: where there is no table, none is made.
func TestNothingToAccept(t *testing.T) {
	forEach(t, func(n node) {
		k := keeper(check(31000))
		n.sync(k)
		if n.Backend == xtables.NFT {
			netnstest.RequireTool(n, "nft")
			if got := n.Exec("", "nft", "list", "ruleset"); got != "" {
				n.Errorf("nftables has\n%s", got)
			}
		} else if got := n.Exec("", "cat", "/proc/self/net/ip_tables_names", "/proc/self/net/ip6_tables_names"); got != "" {
			n.Errorf("the tables %q are loaded", got)
		}
		// Native tables of the same name whose chains are not iptables' are left alone.
		if n.Backend == xtables.NFT {
			const native = "table ip filter {\n\tchain forward {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n\n\tchain FORWARD {\n\t}\n}\n"
			n.Exec(native, "nft", "-f", "-")
			n.sync(k)
			if got := n.Exec("", "nft", "list", "ruleset"); got != native {
				n.Errorf("nftables has\n%s", got)
			}
		}
	})
}

// TestOneChain: iptables-nft makes the built-in chains when they are needed.
func TestOneChain(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	forEach(t, func(n node) {
		if n.Backend != xtables.NFT {
			n.Skip("the legacy back end has all chains at once")
		}
		family := map[decision.Family]string{decision.IPv4: "ip", decision.IPv6: "ip6"}[n.Family]
		n.Exec(fmt.Sprintf("table %s filter { chain INPUT { type filter hook input priority 0; policy drop; }; }", family), "nft", "-f", "-")
		k := keeper(check(31000))
		n.sync(k)
		if got := n.Exec("", "nft", "list", "ruleset"); !strings.Contains(got, "jump NFQPROXY-HEALTHCHECK") || strings.Contains(got, "FORWARD") {
			n.Errorf("nftables has\n%s", got)
		}
		n.iptables("-P FORWARD DROP")
		n.sync(k)
		if got := n.save(); !strings.Contains(got, "-j NFQPROXY-FORWARD") {
			n.Errorf("saved\n%s", got)
		}
	})
}

// running runs the keeper until the end of the test.
func (n node) running(k *Keeper) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.NS.Do(func() error { return k.Run(ctx) }) }()
	n.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			n.Error(err)
		}
	})
}

// TestRepair: the rules come as soon as there is a table, and come back when they are removed.
func TestRepair(t *testing.T) {
	forEach(t, func(n node) {
		k := keeper(check(31000))
		n.running(k)
		n.iptables(docker...)
		n.eventually(withOurs, k, 0)
		for i, damage := range []string{
			"-D FORWARD 1",
			"-F NFQPROXY-FORWARD",
			"-D NFQPROXY-HEALTHCHECK 1",
			"-I NFQPROXY-FORWARD -j DROP",
			`-R NFQPROXY-FORWARD 2 -i eth9 -m comment --comment "nfqproxy forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
			"-D INPUT 1\n-F NFQPROXY-HEALTHCHECK\n-X NFQPROXY-HEALTHCHECK",
		} {
			n.Exec("*filter\n"+damage+"\nCOMMIT\n", n.tool("restore"), "--noflush", "-w")
			n.eventually(withOurs, k, i+1)
		}
		n.Exec(dockerSaved, n.tool("restore"))
		n.eventually(withOurs, k, 7)
	})
}

func (n node) eventually(want string, k *Keeper, repairs int) {
	n.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got := n.save()
		if sorted(got) == sorted(want) && int(k.Repaired()) >= repairs {
			break
		}
		if time.Now().After(end) {
			n.Fatalf("fault %q, after %d repairs, want %d: saved\n%s\nwant\n%s", k.Fault(), k.Repaired(), repairs, got, want)
		}
	}
}

// TestBesideOthers: others change the table while we do. No change is lost, none fails, and
// no rule is there twice.
func TestBesideOthers(t *testing.T) {
	netnstest.RequireTool(t, "sh")
	forEach(t, func(n node) {
		n.iptables(docker...)
		k := keeper(check(31000))
		n.running(k)
		others := exec.CommandContext(t.Context(), "sh", "-ec", fmt.Sprintf(`i=0
while [ $i -lt 40 ]; do
	%[1]s -w -A DOCKER -p tcp --dport $((1000+i)) -j ACCEPT
	%[1]s -w -I FORWARD -s %[2]s -j DOCKER-USER
	%[1]s -w -D FORWARD -s %[2]s -j DOCKER-USER
	i=$((i+1))
done`, n.tool(), map[decision.Family]string{decision.IPv4: "192.0.2.1", decision.IPv6: "2001:db8::1"}[n.Family]))
		var output strings.Builder
		others.Stdout, others.Stderr = &output, &output
		if err := n.NS.Start(others); err != nil {
			n.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- others.Wait() }()
		for i, over := 0, false; !over; i++ {
			select {
			case err := <-ended:
				if err != nil {
					n.Fatalf("%v: %s", err, output.String())
				}
				over = true
			default:
			}
			k.set(check(uint16(31001+i%7), 31000))
			n.sync(k)
		}
		k.set(check(31000))
		want := withOurs
		for i := range 40 {
			want = strings.Replace(want, "-A DOCKER-USER ", fmt.Sprintf("-A DOCKER -p tcp -m tcp --dport %d -j ACCEPT\n-A DOCKER-USER ", 1000+i), 1)
		}
		n.eventually(want, k, 0)
		if k.Repaired() > 0 { // no other program touched ours
			n.Errorf("%d repairs", k.Repaired())
		}
	})
}
