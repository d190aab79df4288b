package decision

import (
	"fmt"
	"strings"
	"testing"
)

// walkText writes a walk as "outcome -A chain rule" lines.
func walkText(steps []Step) string {
	var b strings.Builder
	for _, s := range steps {
		if s.Text == "" {
			b.WriteString("(no sentence) ")
		}
		fmt.Fprintf(&b, "%s: %s -A %s %s\n", s.Outcome, s.Table, s.Chain, s.Rule)
	}
	return b.String()
}

// TestWalk holds whole walks against rules copied from published nodes.
func TestWalk(t *testing.T) {
	nginx := port("default/my-nginx-service", TCP, "10.96.118.136:80", 30080, "10.244.1.2:80", "10.244.2.2:80")
	dns := port("kube-system/kube-dns:dns", UDP, "10.96.0.10:53", 0, "10.244.0.2:53", "10.244.0.3:53")
	empty := port("default/empty", TCP, "10.96.0.99:80", 30099)
	host := port("default/host", TCP, "10.96.0.7:7", 30007, "172.20.0.2:7000")
	tb := table(t, cluster(), nginx, dns, empty, host)
	tests := []struct {
		name   string
		packet *Packet
		draw   fixed
		want   string
	}{
		{"pod to ClusterIP, second endpoint", packet(UDP, "10.244.1.9:1000", "10.96.0.10:53"), 0.7, `
jump: nat -A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU
no-match: nat -A KUBE-SVC-TCOU7JCQXEZGVUNU ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp --dport 53 -j KUBE-MARK-MASQ
no-match: nat -A KUBE-SVC-TCOU7JCQXEZGVUNU -m comment --comment "kube-system/kube-dns:dns -> 10.244.0.2:53" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-YIL6JZP7A3QYXJU2
jump: nat -A KUBE-SVC-TCOU7JCQXEZGVUNU -m comment --comment "kube-system/kube-dns:dns -> 10.244.0.3:53" -j KUBE-SEP-6E7XQMQ4RAYOWTTM
no-match: nat -A KUBE-SEP-6E7XQMQ4RAYOWTTM -s 10.244.0.3/32 -m comment --comment "kube-system/kube-dns:dns" -j KUBE-MARK-MASQ
match: nat -A KUBE-SEP-6E7XQMQ4RAYOWTTM -p udp -m comment --comment "kube-system/kube-dns:dns" -m udp -j DNAT --to-destination 10.244.0.3:53
`},
		{"outside to node port, first endpoint", packet(TCP, "172.20.0.9:1000", "172.20.0.2:30080"), 0.1, `
jump: nat -A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
jump: nat -A KUBE-NODEPORTS -p tcp -m comment --comment "default/my-nginx-service" -m tcp --dport 30080 -j KUBE-EXT-OL4YPD43MBS7WVHD
mark: nat -A KUBE-EXT-OL4YPD43MBS7WVHD -m comment --comment "masquerade traffic for default/my-nginx-service external destinations" -j KUBE-MARK-MASQ
jump: nat -A KUBE-EXT-OL4YPD43MBS7WVHD -j KUBE-SVC-OL4YPD43MBS7WVHD
no-match: nat -A KUBE-SVC-OL4YPD43MBS7WVHD ! -s 10.244.0.0/16 -d 10.96.118.136/32 -p tcp -m comment --comment "default/my-nginx-service cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
jump: nat -A KUBE-SVC-OL4YPD43MBS7WVHD -m comment --comment "default/my-nginx-service -> 10.244.1.2:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-ULMINKU752SDK7IQ
no-match: nat -A KUBE-SEP-ULMINKU752SDK7IQ -s 10.244.1.2/32 -m comment --comment "default/my-nginx-service" -j KUBE-MARK-MASQ
match: nat -A KUBE-SEP-ULMINKU752SDK7IQ -p tcp -m comment --comment "default/my-nginx-service" -m tcp -j DNAT --to-destination 10.244.1.2:80
match: nat -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
`},
		{"hairpin", packet(TCP, "10.244.2.2:1000", "10.96.118.136:80"), 0.9, `
jump: nat -A KUBE-SERVICES -d 10.96.118.136/32 -p tcp -m comment --comment "default/my-nginx-service cluster IP" -m tcp --dport 80 -j KUBE-SVC-OL4YPD43MBS7WVHD
no-match: nat -A KUBE-SVC-OL4YPD43MBS7WVHD ! -s 10.244.0.0/16 -d 10.96.118.136/32 -p tcp -m comment --comment "default/my-nginx-service cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
no-match: nat -A KUBE-SVC-OL4YPD43MBS7WVHD -m comment --comment "default/my-nginx-service -> 10.244.1.2:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-ULMINKU752SDK7IQ
jump: nat -A KUBE-SVC-OL4YPD43MBS7WVHD -m comment --comment "default/my-nginx-service -> 10.244.2.2:80" -j KUBE-SEP-S4QGHWZAQRZ7NT5K
mark: nat -A KUBE-SEP-S4QGHWZAQRZ7NT5K -s 10.244.2.2/32 -m comment --comment "default/my-nginx-service" -j KUBE-MARK-MASQ
match: nat -A KUBE-SEP-S4QGHWZAQRZ7NT5K -p tcp -m comment --comment "default/my-nginx-service" -m tcp -j DNAT --to-destination 10.244.2.2:80
match: nat -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
`},
		{"endpoint on the node itself", packet(TCP, "172.20.0.9:1000", "10.96.0.7:7"), 0, `
jump: nat -A KUBE-SERVICES -d 10.96.0.7/32 -p tcp -m comment --comment "default/host cluster IP" -m tcp --dport 7 -j KUBE-SVC-WXDO3AZOGSJAASMH
mark: nat -A KUBE-SVC-WXDO3AZOGSJAASMH ! -s 10.244.0.0/16 -d 10.96.0.7/32 -p tcp -m comment --comment "default/host cluster IP" -m tcp --dport 7 -j KUBE-MARK-MASQ
jump: nat -A KUBE-SVC-WXDO3AZOGSJAASMH -m comment --comment "default/host -> 172.20.0.2:7000" -j KUBE-SEP-P6YYWX5GHWF77HPL
no-match: nat -A KUBE-SEP-P6YYWX5GHWF77HPL -s 172.20.0.2/32 -m comment --comment "default/host" -j KUBE-MARK-MASQ
match: nat -A KUBE-SEP-P6YYWX5GHWF77HPL -p tcp -m comment --comment "default/host" -m tcp -j DNAT --to-destination 172.20.0.2:7000
no-match: nat -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
`},
		{"no endpoints by ClusterIP", packet(TCP, "10.244.1.9:1000", "10.96.0.99:80"), 0, `
match: filter -A KUBE-SERVICES -d 10.96.0.99/32 -p tcp -m comment --comment "default/empty has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
`},
		{"no endpoints by node port", packet(TCP, "10.244.1.9:1000", "172.20.0.2:30099"), 0, `
match: filter -A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "default/empty has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30099 -j REJECT --reject-with icmp-port-unreachable
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := Decide(tb, tt.packet, tt.draw)
			if got := "\n" + walkText(Walk(tb, tt.packet, &d)); got != tt.want {
				t.Errorf("got%s\nwant%s", got, tt.want)
			}
		})
	}
}

func TestProbabilityText(t *testing.T) {
	for n, want := range map[int]string{2: "0.50000000000", 3: "0.33333333349", 4: "0.25000000000", 7: "0.14285714272"} {
		if got := probability(n); got != want {
			t.Errorf("1/%d is written %s, want %s", n, got, want)
		}
	}
}
