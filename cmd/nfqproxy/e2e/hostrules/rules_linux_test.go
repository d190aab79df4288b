package hostrules

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// decided makes a connection to a service that has to be decided by the daemon of node-a.
func decided(c *e2etest.Cluster) {
	c.T.Helper()
	conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	c.Ask(conn)
	c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr())
}

func runNft(c *e2etest.Cluster, node, script string) {
	c.T.Helper()
	if out, err := c.Host(node).Run(script, "nft", "-f", "-"); err != nil {
		c.T.Fatalf("nft: %v\n%s", err, out)
	}
}

// TestRulesDamagedByOthers: whatever another program does to our table, services work
// again in a moment, and the metrics count it.
func TestRulesDamagedByOthers(t *testing.T) { e2etest.InEachScope(t, testRulesDamagedByOthers) }

func testRulesDamagedByOthers(t *testing.T, c *e2etest.Cluster) {
	netnstest.RequireTool(t, "nft")
	scripts := []string{
		"flush table ip nfqproxy",
		"flush table ip6 nfqproxy",
		"flush chain ip nfqproxy queue_prerouting",
		"flush chain ip nfqproxy new_flows",
		"flush set ip nfqproxy service",
		"add chain ip nfqproxy more { type filter hook prerouting priority 0; policy drop; }",
		"delete chain ip nfqproxy nat_prerouting",
	}
	for i, script := range scripts {
		decided(c)
		runNft(c, "node-a", script)
		c.LoggedTimes("repaired the kernel rules", i+1)
		decided(c)
	}
	if n := c.Metric("node-a", "nfqproxy_rules_repaired_total"); n != float64(len(scripts)) {
		t.Errorf("%g repairs are counted, want %d", n, len(scripts))
	}
	if n := c.Metric("node-a", "nfqproxy_rules_reinstalled_total"); n != 0 {
		t.Errorf("%g installations are counted, want 0", n)
	}
	if n := c.Metric("node-b", "nfqproxy_rules_repaired_total"); n != 0 {
		t.Errorf("%g repairs are counted on a node whose rules nobody touched", n)
	}
}

// TestRulesOfOthersReloaded: Debian's nftables.service flushes all rules and loads a file when
// it restarts. The daemon survives 40 times of that while flows and changes of services come.
func TestRulesOfOthersReloaded(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "nft")
	netnstest.RequireTool(t, "sh")
	c := e2etest.NewCluster(t)
	// Only what the script needs to be started in the namespace; it does not outlive the test.
	others := exec.CommandContext(t.Context(), "sh", "-ec", `i=0
while [ $i -lt 40 ]; do
	nft flush ruleset
	printf 'flush ruleset\ntable inet filter { chain input { type filter hook input priority 0; }; }\n' | nft -f -
	i=$((i+1))
done`)
	c.Must(c.Host("node-a").Start(others))
	ended := make(chan error, 1)
	go func() { ended <- others.Wait() }()
	for i, over := 0, false; !over; i++ {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			over = true
		default:
		}
		c.Edit(func(s string) string {
			from, to := "port: 80, protocol: TCP, nodePort: 30080", "port: 81, protocol: TCP, nodePort: 30081"
			if i%2 == 1 {
				from, to = to, from
			}
			return strings.Replace(s, from, to, 1)
		})
	}
	conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.30:80")
	c.Ask(conn)
	c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr())
	if code, body := c.Get("node-a", e2etest.HealthPort, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d, %s", code, body)
	}
}

// TestRulesBeyondRepair: while the kernel rules are not what they should be, health says so;
// the daemon lives on and repairs them as soon as it can.
func TestRulesBeyondRepair(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	decided(c)
	// A table that belongs to a socket (linux/netfilter/nf_tables.h, NFT_TABLE_F_OWNER; since
	// Linux 5.12) cannot be changed by others.
	const owner = 2
	var otherConn *netlink.Conn
	err := c.Host("node-a").Do(func() (err error) {
		if otherConn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return err
		}
		var tx nft.Transaction
		name := func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, ruleset.TableName) }
		tx.Add(unix.NFPROTO_IPV4, unix.NFT_MSG_DELTABLE, 0, name)
		tx.Add(unix.NFPROTO_IPV4, unix.NFT_MSG_NEWTABLE, netlink.Create, func(e *netlink.AttributeEncoder) {
			name(e)
			e.Uint32(unix.NFTA_TABLE_FLAGS, owner)
		})
		return tx.RunOn(otherConn)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer otherConn.Close() // closed below
	for _, path := range []string{"/healthz", "/livez"} {
		e2etest.Eventually(t, e2etest.Timeout, path+" to fail", func() bool {
			code, body, err := c.TryGet("node-a", e2etest.HealthPort, path)
			return err == nil && code == http.StatusServiceUnavailable && strings.Contains(body, `"fault":"repair nftables tables ip nfqproxy and ip6 nfqproxy: `)
		})
	}
	c.Logged("reason=KernelRulesDamaged")
	if code, body := c.Get("node-b", e2etest.HealthPort, "/healthz"); code != http.StatusOK || strings.Contains(body, "fault") {
		t.Errorf("/healthz of another node answers %d, %s", code, body)
	}
	c.Must(otherConn.Close()) // and with it goes its table
	c.Logged("reason=KernelRulesRepaired")
	decided(c)
	if code, body := c.Get("node-a", e2etest.HealthPort, "/healthz"); code != http.StatusOK || strings.Contains(body, "fault") {
		t.Errorf("/healthz answers %d, %s", code, body)
	}
	if n := fmt.Sprint(c.Metric("node-a", "nfqproxy_rules_reinstalled_total")); n != "1" {
		t.Errorf("%s installations are counted, want 1", n)
	}
}

// TestMarkCollision: at its start the daemon names rules of others that use its marks.
func TestMarkCollision(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "nft")
	c := e2etest.NewCluster(t)
	c.Must(c.StopDaemon(t.Context(), "node-a"))
	runNft(c, "node-a", "table inet wg { chain premangle { type filter hook prerouting priority mangle; meta l4proto udp meta mark set ct mark; }; }")
	c.Must(c.StartDaemon(t.Context(), "node-a"))
	c.Logged(`msg="a rule of the host uses the same mark bit as nfqproxy" table="nftables table inet wg" rule="premangle: meta l4proto udp meta mark set ct mark"`)
	// Nobody else has such rules, and ours are none.
	for _, line := range c.Logs() {
		if strings.Contains(line, "uses the same mark bit") && (!strings.HasPrefix(line, "node-a") || !strings.Contains(line, "inet wg")) {
			t.Errorf("logged: %s", line)
		}
	}
}
