package main

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const tableHead = `| attack | node served by | attack's packets | connections | failed | delayed | SYN sent again | UDP requests lost | connection entries at the end | of the flow's datagrams queued |
|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|`

// clientResult is the result of a client.
type clientResult struct {
	attempts, failed int // connections
	delayed, resent  int // of those that did not fail
	requests, lost   int // of UDP
	errors           map[string]int
}

// add counts outcomes.
func (e *clientResult) add(outcomes []outcome) {
	e.attempts += len(outcomes)
	for _, o := range outcomes {
		if o.err != nil {
			e.failed++
			e.errors[o.err.Error()]++
			continue
		}
		if o.took > late {
			e.delayed++
		}
		if o.took > resent {
			e.resent++
		}
	}
}

// row is one line of the table.
type row struct {
	attack            string
	proxy             proxy
	packets           int
	client            *clientResult // nil: there was no client
	entries           int
	datagrams, queued int // of a flow; 0: there was none
}

// String is the line, in Markdown.
func (r *row) String() string {
	cells := []string{r.attack, string(r.proxy), "-", "-", "-", "-", "-", "-", "-", "-"}
	if r.client != nil || r.datagrams > 0 {
		cells[2], cells[8] = fmt.Sprint(r.packets), fmt.Sprint(r.entries)
	}
	if c := r.client; c != nil {
		cells[3], cells[4], cells[7] = fmt.Sprint(c.attempts), share(c.failed, c.attempts), share(c.lost, c.requests)
		cells[5], cells[6] = share(c.delayed, c.attempts), share(c.resent, c.attempts)
	}
	if r.datagrams > 0 {
		cells[9] = fmt.Sprintf("%d of %d", r.queued, r.datagrams)
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// share is a part in percent. A part greater than 0 is not printed as 0.
func share(part, of int) string {
	switch {
	case part == 0 || of == 0:
		return "0 %"
	case part*10000 < of:
		return "< 0.01 %"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(of))
}

// counter reads one sample of Prometheus' text format.
func counter(metrics io.Reader, sample string) (int, error) {
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), sample+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			return int(v), err
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("metrics: no %s", sample)
}
