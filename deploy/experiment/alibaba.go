package experiment

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// The microservice traces of Alibaba, cluster-trace-microservices-v2021 and -v2022 (github.com/alibaba/clusterdata), have CSV files with a
// header. Their columns are found by name: the versions differ in the order, in further columns, and in two names.

// headerOf are the names in the first line of a CSV file.
func headerOf(text string) (names []string) {
	line, _, _ := strings.Cut(text, "\n")
	for name := range strings.SplitSeq(line, ",") {
		names = append(names, strings.ToLower(strings.Trim(name, " \r\"\ufeff")))
	}
	return names
}

// record is a row of a CSV file with a header.
type record struct {
	fields  []string
	columns map[string]int
}

// has reports whether there is a column.
func (r *record) has(name string) bool { _, ok := r.columns[name]; return ok }

// text is the value of the first of the columns that there is.
func (r *record) text(names ...string) string {
	for _, name := range names {
		if i, ok := r.columns[name]; ok {
			return strings.TrimSpace(r.fields[i])
		}
	}
	return ""
}

// number is the number in a column.
func (r *record) number(name string) (float64, error) {
	v, err := strconv.ParseFloat(r.text(name), 64)
	if err != nil || math.IsNaN(v) || math.Abs(v) > 1e12 {
		return 0, fmt.Errorf("column %s: want a number, not %q", name, r.text(name))
	}
	return v, nil
}

// records calls each for the rows of a CSV file. wanted are the columns that it must have, and of which each may have several names.
func (p *reader) records(text io.Reader, path string, wanted [][]string, each func(r *record) error) {
	in := csv.NewReader(text)
	in.ReuseRecord = true
	fail := func(line int, err error) {
		p.Mistakes = append(p.Mistakes, &yamlfile.Mistake{File: path, Line: line, Err: err})
	}
	read := func() ([]string, bool) {
		fields, err := in.Read()
		var wrong *csv.ParseError
		switch {
		case errors.As(err, &wrong):
			fail(wrong.Line, wrong.Err)
		case err != nil && !errors.Is(err, io.EOF):
			fail(0, err)
		}
		return fields, err == nil
	}
	r := &record{columns: make(map[string]int)}
	header, ok := read()
	if !ok {
		return
	}
	for i, name := range headerOf(strings.Join(header, ",")) {
		r.columns[name] = i
	}
	for _, names := range wanted {
		if !slices.ContainsFunc(names, r.has) {
			fail(1, fmt.Errorf("want a column %s, as in Alibaba's microservice traces", strings.Join(names, " or ")))
			return
		}
	}
	for {
		if r.fields, ok = read(); !ok {
			return
		}
		if err := each(r); err != nil {
			line, _ := in.FieldPos(0)
			fail(line, err)
			return
		}
	}
}

// callGraph reads the calls of a table of call graphs (MSCallGraph). A remote call has up to two records of the same traceid and rpcid: the
// caller's has the response time that it sees, in milliseconds, and that of the called microservice has the time until its reply as a
// negative number, which is the time of the work. Calls of databases, caches and message queues are no flows.
func (p *reader) callGraph(text io.Reader, path, microservice string) (flows []traffic.Traced) {
	type call struct{ trace, id string }
	numbers := make(map[call]int) // of flows
	var callee []bool             // the work of each flow is of a record of the called microservice
	wanted := [][]string{{"timestamp"}, {"traceid"}, {"rpcid", "rpc_id"}, {"rpctype"}, {"dm"}, {"rt"}}
	p.records(text, path, wanted, func(r *record) error {
		if microservice != "" && r.text("dm") != microservice {
			return nil
		}
		if kind := r.text("rpctype"); kind != "rpc" && kind != "http" {
			return nil
		}
		at, err := r.number("timestamp")
		if err != nil {
			return err
		}
		rt, err := r.number("rt")
		if err != nil {
			return err
		}
		f := traffic.Traced{At: ofMilliseconds(at), Service: -1, Work: ofMilliseconds(math.Abs(rt))}
		k := call{strings.Clone(r.text("traceid")), strings.Clone(r.text("rpcid", "rpc_id"))}
		n, known := numbers[k]
		if !known {
			if len(flows) == maxTrace {
				return fmt.Errorf("want at most %d flows", maxTrace)
			}
			numbers[k] = len(flows)
			flows, callee = append(flows, f), append(callee, rt < 0)
			return nil
		}
		one := &flows[n]
		one.At = min(one.At, f.At)
		if rt < 0 && !callee[n] {
			one.Work, callee[n] = f.Work, true
		}
		return nil
	})
	p.Want("workload.arrivals.microservice", len(flows) > 0 || len(p.Mistakes) > 0, "%s has no call by rpc or http of %s", path, orElse(microservice, "any microservice"))
	return inOrder(flows)
}

func ofMilliseconds(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }

// callRates reads the calls per second that microservices get by RPC, in a table of metrics (MSRTQps of v2021, MSRTMCR of v2022), as
// numbers in each minute. Those of v2022 are normalized: only their proportions count.
func (p *reader) callRates(text io.Reader, path, microservice string) (counts []float64) {
	const minute, rate, most = 60_000.0, "providerrpc_mcr", 366 * 24 * 60
	minutes := make(map[int]float64)
	first, last := math.MaxInt, math.MinInt
	p.records(text, path, [][]string{{"timestamp"}, {"msname"}, {"metric", "metrics", rate}}, func(r *record) error {
		value := "value"
		if r.has(rate) {
			value = rate
		} else if !strings.EqualFold(r.text("metric", "metrics"), rate) {
			return nil
		}
		if microservice != "" && r.text("msname") != microservice || r.text(value) == "" {
			return nil
		}
		at, err := r.number("timestamp")
		if err != nil {
			return err
		}
		v, err := r.number(value)
		if err == nil && v < 0 {
			err = fmt.Errorf("column %s: want a number of 0 or more, not %v", value, v)
		}
		if err != nil {
			return err
		}
		n := int(math.Floor(at / minute))
		if first, last = min(first, n), max(last, n); last-first >= most {
			return fmt.Errorf("column timestamp: want milliseconds within a year, not %v", at)
		}
		minutes[n] += float64(60 * v)
		return nil
	})
	if len(minutes) == 0 {
		p.Want("workload.arrivals.microservice", len(p.Mistakes) > 0, "%s has no calls by RPC of %s", path, orElse(microservice, "any microservice"))
		return nil
	}
	counts = make([]float64, last-first+1)
	for n, v := range minutes {
		counts[n-first] = v
	}
	return counts
}
