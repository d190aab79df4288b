package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/machine"
)

const ours = "nfqproxy"

// gaveUp is the quantity of a sample for a start that took too long.
const gaveUp = "gave up after"

// failedBy begins the quantity that counts failed connections of one kind.
const failedBy = "failed: "

// column is a column of a table: a quantity, or the ratio of ours to the row's.
type column struct {
	title, quantity string
	ratio           bool
}

// table is one table of the report: one row for each contestant that has figures.
type table struct {
	title, measure string
	columns        []column
}

var loadColumns = []column{
	{"connections/s", "rate", false}, {"nfqproxy ÷ it", "rate", true},
	{"p50 µs", "p50", false}, {"nfqproxy ÷ it", "p50", true},
	{"p99 µs", "p99", false}, {"p99.9 µs", "p99.9", false},
	{"its CPU µs/conn.", "process", false}, {"machine's CPU µs/conn.", "machine", false},
}

func workloadTable(measure string) table {
	title := strings.ToUpper(measure[:3]) + measure[3:]
	if strings.HasPrefix(measure, "udp") {
		title = "UDP" + strings.TrimSuffix(measure[3:], ", "+shortTimeouts.name) + " (request and reply from a fresh port)"
	} else {
		title += " (open, one byte there and back, close)"
	}
	return table{title, measure, loadColumns}
}

var otherTables = []table{
	{"One established TCP connection", "stream", []column{
		{"Gbit/s", "rate", false}, {"nfqproxy ÷ it", "rate", true}, {"its CPU ms/s", "process", false}, {"machine's CPU ms/GB", "machine", false}}},
	{"From the API server's response to a change of an EndpointSlice to the first connection that obeys", "change", []column{
		{"ms", "until obeyed", false}, {"nfqproxy ÷ it", "until obeyed", true}}},
	{"From the start of the process to serving", "start", []column{{"s", "until it serves", false}, {"nfqproxy ÷ it", "until it serves", true}}},
	{"Resident memory", "memory", []column{{"MiB", "resident", false}, {"nfqproxy ÷ it", "resident", true}}},
	{"Kernel rules", "rules", []column{{"rules", "in the kernel", false}}},
}

// report is the run's tables in Markdown.
func (s *samples) report(contestants []contestant) string {
	var out strings.Builder
	out.WriteString("\nMedians (least–most). \"≈\": within 15 %, which is no difference here.\n\n")
	for _, c := range contestants {
		if c.missing == "" {
			fmt.Fprintf(&out, "- **%s**: %s\n", c.name, c.what)
		} else {
			fmt.Fprintf(&out, "- **%s**: omitted: %s\n", c.name, c.missing)
		}
	}
	var measures []string
	var sizes []int
	for _, v := range s.all {
		if !slices.Contains(sizes, v.services) {
			sizes = append(sizes, v.services)
		}
		if v.quantity == "p50" && !slices.Contains(measures, v.measure) {
			measures = append(measures, v.measure)
		}
	}
	var tables []table
	for _, m := range measures {
		tables = append(tables, workloadTable(m))
	}
	for _, n := range sizes {
		out.WriteString(s.reportEvents(n, contestants))
		out.WriteString(s.reportRolling(n, contestants))
	}
	for _, t := range append(tables, otherTables...) {
		s.write(&out, t, sizes, contestants)
	}
	s.writeLosses(&out)
	return out.String()
}

func (s *samples) write(out *strings.Builder, t table, sizes []int, contestants []contestant) {
	fmt.Fprintf(out, "\n### %s\n\n| services | |", t.title)
	for _, c := range t.columns {
		fmt.Fprintf(out, " %s |", c.title)
	}
	out.WriteString("\n|--:|:--|" + strings.Repeat("--:|", len(t.columns)) + "\n")
	for _, n := range sizes {
		for _, c := range contestants {
			if s.figure(n, c.name, t.measure, t.columns[0].quantity).n == 0 {
				continue
			}
			fmt.Fprintf(out, "| %d | %s |", n, c.name)
			for _, col := range t.columns {
				f := s.figure(n, c.name, t.measure, col.quantity)
				cell := f.String()
				if col.ratio {
					cell = ratio(s.figure(n, ours, t.measure, col.quantity), f)
				}
				if col.ratio && c.name == ours {
					cell = ""
				}
				fmt.Fprintf(out, " %s |", cell)
			}
			out.WriteString("\n")
		}
	}
}

// writeLosses lists connections that failed or had to try again.
func (s *samples) writeLosses(out *strings.Builder) {
	out.WriteString("\n### Abandoned proxies, failed connections, connections with a lost first packet\n\n")
	none := true
	for _, v := range s.all {
		if v.quantity == gaveUp {
			none = false
			fmt.Fprintf(out, "- %d services, %s: did not serve within %.0f s, and was abandoned\n", v.services, v.contestant, v.value)
		}
		if (strings.HasPrefix(v.quantity, failedBy) || v.quantity == "retransmitted") && v.value > 0 {
			none = false
			fmt.Fprintf(out, "- %d services, %s, %s, round %d: %.0f %s\n", v.services, v.contestant, v.measure, v.round+1, v.value, v.quantity)
		}
	}
	if none {
		out.WriteString("None.\n")
	}
}

// describe lists what was measured with what, in Markdown. idle is what idle CPUs do.
func describe(p *plan, idle string) string {
	var out strings.Builder
	item := func(name, format string, args ...any) {
		fmt.Fprintf(&out, "- %s: %s\n", name, fmt.Sprintf(format, args...))
	}
	out.WriteString("# nfqproxy beside kube-proxy and the queue's floor\n\n")
	item("when", "%s; load average before: %s", time.Now().UTC().Format(time.DateTime), machine.Load())
	item("machine", "%s", machine.Hardware())
	item("idle CPUs", "%s", idle)
	item("kernel", "%s", machine.Kernel())
	item("Go", "%s", runtime.Version())
	item("nfqproxy", "%s", machine.Version(p.nfqproxy[0], "--version"))
	if path, err := cluster.Binary(cluster.KubeProxy); err == nil {
		item("kube-proxy", "%s", machine.Version(path, "--version"))
	}
	item("iptables", "%s; %s", machine.Version("xtables-nft-multi", "iptables", "--version"), machine.Version("xtables-legacy-multi", "iptables", "--version"))
	item("nft", "%s", machine.Version("nft", "--version"))
	item("connection tracking", "nf_conntrack_max %s", machine.FirstLine("/proc/sys/net/netfilter/nf_conntrack_max"))
	item("objects", "services with %d endpoints each, all of which answer; connections go to all of them in turn; one service in %d has a UDP port, too", p.endpoints, udpEvery)
	for _, t := range p.timeouts {
		item(t.name, "nf_conntrack_tcp_timeout_time_wait %d s, _close %d s", t.timeWait, t.close)
	}
	item("source ports", "with short timeouts, all are fresh; with the default ones each has been used before and its old entry is in TIME_WAIT")
	item("each", "%d visits, taking turns in random order; loads of %v, streams of %v, %d changes a visit", p.rounds, p.time, p.stream, p.changes)
	return out.String()
}

// sample is one measured value.
type sample struct {
	services   int
	contestant string
	measure    string // the workload, or start, change, stream, memory, rules
	quantity   string
	unit       string
	round      int
	value      float64
}

// samples are all values of a run. They are written to a file as they come.
type samples struct {
	all []sample
	csv io.Writer
}

func newSamples(csv io.Writer) *samples {
	fmt.Fprintln(csv, "services,contestant,measure,quantity,unit,round,value")
	return &samples{csv: csv}
}

func (s *samples) add(v sample) {
	s.all = append(s.all, v)
	fmt.Fprintf(s.csv, "%d,%s,%q,%s,%s,%d,%g\n", v.services, v.contestant, v.measure, v.quantity, v.unit, v.round, v.value)
}

// figure is what repeated measurements of one thing gave.
type figure struct {
	median, min, max float64
	n                int // 0: not measured
}

func (s *samples) figure(services int, contestant, measure, quantity string) figure {
	return summarize(s.values(services, contestant, measure, quantity))
}

func (s *samples) values(services int, contestant, measure, quantity string) (values []float64) {
	for _, v := range s.all {
		if v.services == services && v.contestant == contestant && v.measure == measure && v.quantity == quantity {
			values = append(values, v.value)
		}
	}
	return values
}

func summarize(values []float64) figure {
	n := len(values)
	if n == 0 {
		return figure{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return figure{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1], n}
}

// String gives "12.3 (11.9–13.0)", or a dash if nothing was measured.
func (f figure) String() string {
	switch {
	case f.n == 0:
		return "–"
	case f.n == 1 || f.min == f.max:
		return round3(f.median)
	}
	return fmt.Sprintf("%s (%s–%s)", round3(f.median), round3(f.min), round3(f.max))
}

// round3 gives three digits that count.
func round3(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.01:
		return fmt.Sprintf("%.2f", v)
	case v == 0:
		return "0"
	}
	return fmt.Sprintf("%.4f", v)
}

// alike is the difference below which two figures are called the same: repeats spread
// by as much.
const alike = 0.15

// ratio formats ours over theirs, with a mark if that is no difference.
func ratio(ours, theirs figure) string {
	if ours.n == 0 || theirs.n == 0 || theirs.median == 0 {
		return "–"
	}
	r := ours.median / theirs.median
	if r > 1-alike && r < 1+alike {
		return fmt.Sprintf("%.2f ≈", r)
	}
	return fmt.Sprintf("%.2f", r)
}
