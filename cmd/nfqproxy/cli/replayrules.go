package cli

import (
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/sim/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/sim/replay"
)

// ruleDecider makes a decider from the dumps of --rules. Guesses about the host go to stderr.
func (f *replayFlags) ruleDecider(stdin io.Reader, stderr io.Writer, draws *rand.Rand) (replay.Decider, error) {
	known, err := f.host.load()
	if err != nil {
		return nil, err
	}
	rules := replay.Rules{Machines: make(map[decision.Family]*netfilter.Machine), Steps: f.steps}
	var guessed []netfilter.Guess
	for _, name := range f.rules {
		dump, err := readRules(stdin, name, iptables.FamilyUnknown)
		if err != nil {
			return nil, fmt.Errorf("--rules: %w", err)
		}
		family := dump.Family
		if rules.Machines[family] != nil {
			return nil, fmt.Errorf("--rules %s: second dump of %s: give one dump per family", name, family)
		}
		host, guesses := netfilter.GuessHost([]*iptables.Dump{dump}, known, nil)
		guessed = append(guessed, guesses...)
		if rules.Machines[family], err = netfilter.New([]*iptables.Dump{dump}, nil, host, netfilter.Options{}); err != nil {
			return nil, fmt.Errorf("--rules %s: %w", name, err)
		}
	}
	for _, g := range guessed {
		fmt.Fprintln(stderr, "nfqproxy: guessed:", g.Text)
	}
	return replay.ByRules(rules, draws), nil
}

// firstGiven is the first of the flags that was given; empty: none of them.
func firstGiven(given func(flag string) bool, add func(*pflag.FlagSet)) (name string) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	add(flags)
	flags.VisitAll(func(flag *pflag.Flag) {
		if name == "" && given(flag.Name) {
			name = flag.Name
		}
	})
	return name
}
