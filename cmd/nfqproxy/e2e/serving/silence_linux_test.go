package serving

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// becomesSilent is what becomes of a connection whose packets the node drops.
const becomesSilent = "no answer"

// silentPort is the last source port of [silent]: below those that kernels give.
var silentPort atomic.Uint32

func init() { silentPort.Store(20000) }

// silent opens a TCP connection from a host by way of node-a, and waits for proof that node-a drops its SYN. With a daemon
// that is the record of its decision, which comes when the verdict is in the kernel; without one, the next SYN on the same
// way: the client's kernel has no answer to the first, and the rules are done with it. No SYN may have passed the rules
// then.
func silent(c *e2etest.Cluster, daemon bool, from, to string) string {
	c.T.Helper()
	source := netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(silentPort.Add(1)))
	if netip.MustParseAddrPort(to).Addr().Is6() {
		source = netip.AddrPortFrom(netip.IPv6Unspecified(), source.Port())
	}
	arrived, passed := countFrom(c, source.Port())
	ctx, cancel := context.WithCancel(c.T.Context())
	ended := make(chan error, 1)
	go func() {
		conn, err := c.Host(from).Dial(ctx, "tcp", source, netip.MustParseAddrPort(to))
		if err == nil {
			err = fmt.Errorf("connected")
			_ = conn.Close()
		}
		ended <- err
	}()
	became := ""
	e2etest.Eventually(c.T, e2etest.Timeout, fmt.Sprintf("node-a to drop what %s sends to %s", from, to), func() bool {
		select {
		case err := <-ended:
			became = err.Error()
			return true
		default:
		}
		if !daemon {
			return arrived() >= 2
		}
		return c.Count(func(r *flow.Record) bool {
			return r.Node == "node-a" && r.Destination == to && strings.HasSuffix(r.Source, fmt.Sprintf(":%d", source.Port()))
		}) > 0
	})
	n := passed()
	cancel()
	if became == "" {
		netnstest.Receive(c.T, ended, "the end of the connection")
	}
	switch {
	case became != "":
		return became
	case n > 0:
		return fmt.Sprintf("%d packets passed node-a", n)
	}
	return becomesSilent
}

// countFrom counts TCP packets from a source port that come to node-a, and those that its rules let through.
func countFrom(c *e2etest.Cluster, port uint16) (arrived, passed func() uint64) {
	c.T.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(c.Host("node-a").FD()))
	if err != nil {
		c.T.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Name: fmt.Sprint("test-from-", port), Family: nftables.TableFamilyINet})
	chain := func(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority) (count func() uint64) {
		chain := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: priority})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 2}, &expr.Cmp{Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
			&expr.Counter{},
		}})
		return func() uint64 {
			rules, err := conn.GetRules(table, chain)
			if err != nil || len(rules) != 1 {
				c.T.Fatalf("%d rules, error %v", len(rules), err)
			}
			return rules[0].Exprs[len(rules[0].Exprs)-1].(*expr.Counter).Packets
		}
	}
	// Raw is before the proxies' own chains; last in FORWARD and INPUT is behind the filters.
	arrived = chain("arrived", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	forwarded := chain("forwarded", nftables.ChainHookForward, nftables.ChainPriorityLast)
	received := chain("received", nftables.ChainHookInput, nftables.ChainPriorityLast)
	if err := conn.Flush(); err != nil {
		c.T.Fatal(err)
	}
	return arrived, func() uint64 { return forwarded() + received() }
}

// TestSilenceIsProven: what passes is not taken for dropped.
func TestSilenceIsProven(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	for _, to := range []string{"10.96.0.30:80", "10.96.0.40:80"} { // answered, and refused
		if got := silent(c, false, "shell", to); got == becomesSilent {
			t.Errorf("to %s: %s", to, got)
		}
	}
}
