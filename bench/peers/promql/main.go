// Command promql reads expressions, a JSON array of strings, from standard input and writes
// what Prometheus' parser makes of them: a JSON array of [Parsed].
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/prometheus/prometheus/promql/parser"
)

// Parsed is what there is in an expression.
type Parsed struct {
	Error     string     `json:"error,omitempty"`
	Selectors []Selector `json:"selectors"`
	Labels    []string   `json:"labels"` // of by, without, on, ignoring and group_left
	// Aggregated: the result has the labels of "by", not those of the series.
	Aggregated bool `json:"aggregated"`
}

// Selector is a selector of time series.
type Selector struct {
	Metric   string    `json:"metric"`
	Matchers []Matcher `json:"matchers"`
}

// Matcher is what a label has to be like.
type Matcher struct {
	Label    string `json:"label"`
	Operator string `json:"operator"` // =, !=, =~ or !~
	Value    string `json:"value"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "promql:", err)
		os.Exit(1)
	}
}

func run() error {
	var expressions []string
	if err := json.NewDecoder(os.Stdin).Decode(&expressions); err != nil {
		return fmt.Errorf("standard input: want a JSON array of expressions: %w", err)
	}
	parsed := make([]Parsed, len(expressions))
	for i, e := range expressions {
		parsed[i] = parse(e)
	}
	return json.NewEncoder(os.Stdout).Encode(parsed)
}

func parse(expression string) Parsed {
	p := Parsed{Selectors: []Selector{}, Labels: []string{}}
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		p.Error = err.Error()
		return p
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			s := Selector{Metric: n.Name, Matchers: []Matcher{}}
			for _, m := range n.LabelMatchers {
				if m.Name != "__name__" {
					s.Matchers = append(s.Matchers, Matcher{m.Name, m.Type.String(), m.Value})
				}
			}
			p.Selectors = append(p.Selectors, s)
		case *parser.AggregateExpr:
			p.Labels = append(p.Labels, n.Grouping...)
			p.Aggregated = true
		case *parser.BinaryExpr:
			if m := n.VectorMatching; m != nil {
				p.Labels = slices.Concat(p.Labels, m.MatchingLabels, m.Include)
			}
		}
		return nil
	})
	return p
}
