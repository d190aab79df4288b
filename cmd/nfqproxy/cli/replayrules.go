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

// ruleDecider makes a decider from the rules of files or a bundle. Guesses about the host go to stderr.
func (f *replayFlags) ruleDecider(stdin io.Reader, stderr io.Writer, draws *rand.Rand) (replay.Decider, error) {
	rules := replay.Rules{Machines: make(map[decision.Family]*netfilter.Machine), Steps: f.walk != text.WalkNone}
	var guessed []netfilter.Guess
	in, err := newRuleInput(stdin, f.rules, f.bundle())
	if err != nil {
		return nil, err
	}
	var known *netfilter.Host
	if in.node == nil {
		if known, err = f.host.load(new(netfilter.Host)); err != nil {
			return nil, err
		}
	}
	all, err := in.dumps(stderr, iptables.FamilyUnknown)
	if err != nil {
		return nil, err
	}
	sets, err := in.sets("")
	if err != nil {
		return nil, err
	}
	for _, family := range familiesOf(all) {
		dumps, err := in.of(all, family)
		if err != nil {
			return nil, err
		}
		if in.node != nil {
			if known, err = in.host(&f.host, family, stderr); err != nil {
				return nil, err
			}
		}
		host, guesses := netfilter.GuessHost(dumps, known, nil)
		guessed = append(guessed, guesses...)
		if rules.Machines[family], err = netfilter.New(dumps, sets, host, netfilter.Options{}); err != nil {
			return nil, fmt.Errorf("%s %s: %w", in.flag(), filesOf(dumps), err)
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
