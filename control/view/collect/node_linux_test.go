package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestCollect collects on a node while two clients send datagrams to it: only those of one client are of interest.
func TestCollect(t *testing.T) {
	for name, tt := range map[string]struct{ node, client, other string }{
		"IPv4": {"10.245.0.1/24", "10.245.0.2/24", "10.245.0.3/24"},
		"IPv6": {"fd45::1/64", "fd45::2/64", "fd45::3/64"},
	} {
		t.Run(name, func(t *testing.T) {
			netnstest.Require(t)
			for _, tool := range []string{"iptables-save", "ip6tables-save", "nft"} {
				netnstest.RequireTool(t, tool)
			}
			node, err := netns.New("node")
			must(t, err)
			client, err := netns.New("client")
			must(t, err)
			t.Cleanup(func() { must(t, node.Close(), client.Close()) })
			at, from, other := netip.MustParsePrefix(tt.node), netip.MustParsePrefix(tt.client), netip.MustParsePrefix(tt.other)
			must(t, node.AddVeth("client", client, "eth0"), node.AddAddress("client", at), client.AddAddress("eth0", from), client.AddAddress("eth0", other))
			_, err = node.Run("", "nft", "add table inet tracked; add chain inet tracked in { type filter hook input priority 0; }; add rule inet tracked in ct state new counter")
			must(t, err)

			server, err := node.ListenPacket(t.Context(), netip.AddrPortFrom(at.Addr(), 5353))
			must(t, err)
			defer server.Close()
			go func() {
				b := make([]byte, 100)
				for {
					n, peer, err := server.ReadFrom(b)
					if err != nil {
						return
					}
					_, _ = server.WriteTo(b[:n], peer)
				}
			}()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, source := range []netip.Prefix{from, other} {
				conn, err := client.Dial(ctx, "udp", netip.AddrPortFrom(source.Addr(), 4000), netip.AddrPortFrom(at.Addr(), 5353))
				must(t, err)
				defer conn.Close()
				go func() {
					for tick := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; <-tick.C {
						_, _ = conn.Write([]byte("who are you?"))
					}
				}()
			}

			var b *bundle.Bundle
			pair := Pair{from.Addr(), at.Addr()}
			must(t, node.Do(func() error {
				b = Collect(ctx, Source{Pairs: []Pair{pair}, Capture: time.Second, Packets: 20})
				return nil
			}))
			if len(b.Notes) > 0 {
				t.Errorf("notes %q", b.Notes)
			}
			checkPackets(t, b.File(bundle.PacketsFile), pair)
			var entries []bundle.Entry
			must(t, json.Unmarshal(b.File(bundle.EntriesFile), &entries))
			if len(entries) != 1 || entries[0].Original.Source != netip.AddrPortFrom(from.Addr(), 4000) || entries[0].Protocol != 17 {
				t.Errorf("entries %+v, want that of %s", entries, from.Addr())
			}
			if !bytes.Contains(b.File(bundle.NFTablesFile), []byte("table inet tracked")) {
				t.Errorf("rules without a table that is there:\n%s", b.File(bundle.NFTablesFile))
			}
		})
	}
}

// checkPackets checks that a capture has packets of the pair in both directions, and no others.
func checkPackets(t *testing.T, capture []byte, pair Pair) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(capture), pcapgo.DefaultNgReaderOptions)
	must(t, err)
	directions := make(map[string]int)
	for n := 0; ; n++ {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if n == 20 {
			t.Fatal("more packets than wanted")
		}
		first := gopacket.LayerType(layers.LayerTypeIPv4)
		if pair.A.Is6() {
			first = layers.LayerTypeIPv6
		}
		p := gopacket.NewPacket(data, first, gopacket.Default)
		if p.NetworkLayer() == nil {
			t.Fatalf("no IP packet: % x", data)
		}
		from, to := p.NetworkLayer().NetworkFlow().Endpoints()
		a, _ := netip.AddrFromSlice(from.Raw())
		c, _ := netip.AddrFromSlice(to.Raw())
		if !pair.Has(a, c) {
			t.Errorf("captured %s -> %s", a, c)
		}
		directions[a.String()]++
		if i, err := r.Interface(info.InterfaceIndex); err != nil || i.Name != "client" {
			t.Errorf("interface %q, %v", i.Name, err)
		}
		if age := time.Since(info.Timestamp); age < 0 || age > time.Hour {
			t.Errorf("captured at %s", info.Timestamp)
		}
	}
	if len(directions) != 2 {
		t.Errorf("captured packets by source: %v, want both", directions)
	}
}

// TestScriptWithoutRoot: the script says that it needs root.
func TestScriptWithoutRoot(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-s", "--", filepath.Join(t.TempDir(), "bundle"))
	cmd.Stdin = strings.NewReader("id() { echo 1000; }\n" + Script)
	if text, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(text), "run it again as root\nwrote ") {
		t.Errorf("%v\n%s", err, text)
	}
}
