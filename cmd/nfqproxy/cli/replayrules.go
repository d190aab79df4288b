package cli

import (
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
)

// ruleDecider makes a decider from the dumps of --rules. Guesses about the host go to stderr.
func (f *replayFlags) ruleDecider(stdin io.Reader, stderr io.Writer, draws *rand.Rand) (replay.Decider, error) {
	known, err := f.host.load()
	if err != nil {
		return nil, err
	}
	rules := replay.Rules{Machines: make(map[decision.Family]*netfilter.Machine), Steps: f.walk != text.WalkNone}
	var guessed []netfilter.Guess
	all, err := readRuleFiles(stdin, stderr, f.rules, iptables.FamilyUnknown)
	if err != nil {
		return nil, fmt.Errorf("--rules: %w", err)
	}
	for _, family := range familiesOf(all) {
		dumps, err := hostRulesOf(all, family)
		if err != nil {
			return nil, fmt.Errorf("--rules: %w", err)
		}
		host, guesses := netfilter.GuessHost(dumps, known, nil)
		guessed = append(guessed, guesses...)
		if rules.Machines[family], err = netfilter.New(dumps, nil, host, netfilter.Options{}); err != nil {
			return nil, fmt.Errorf("--rules %s: %w", filesOf(dumps), err)
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
