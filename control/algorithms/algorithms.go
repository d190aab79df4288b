// Package algorithms has the flags that choose how endpoints are selected: of the daemon, and of commands that
// decide as one would.
//
// It is a ground package.
package algorithms

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
)

// Flags choose how endpoints are selected.
type Flags struct {
	algorithm string
	scripts   []string
	shadow    string
}

// Add adds --balance, with a default for its description, and --balance-script.
func (f *Flags) Add(flags *pflag.FlagSet, without string) {
	flags.StringVar(&f.algorithm, "balance", "", "algorithm that selects among the endpoints that a flow may go to: random, as in kube-proxy, or rr, wrr, lc, wlc, sed, nq, sh, dh (IPVS's schedulers), maglev, p2c, jsq(N), ewma, eject(ALGORITHM), or script:FILE, a policy in Starlark. "+without)
	flags.StringArrayVar(&f.scripts, "balance-script", nil, "file with a Starlark policy for Services with nfqproxy.io/balance: script:FILE (FILE without its directory); may be repeated")
}

// Given reports whether an algorithm was chosen.
func (f *Flags) Given() bool { return f.algorithm != "" }

// AddShadow adds --shadow.
func (f *Flags) AddShadow(flags *pflag.FlagSet) {
	flags.StringVar(&f.shadow, "shadow", "", "algorithms that also decide, without effect, separated by commas: records show what each would have selected, and \"nfqproxy balance --shadows\" compares them")
}

// Algorithms are the ones that Services may name.
type Algorithms struct {
	*balance.Registry
	// Chosen is the canonical name of the algorithm in --balance; empty: random.
	Chosen  string
	Shadows []balance.Algorithm // of --shadow
	Scripts []*script.Script
}

// Load reads the flags and the scripts that they name; more are paths of further scripts, and add adds further algorithms.
func (f *Flags) Load(more []string, add ...func(*balance.Registry)) (a Algorithms, err error) {
	a.Registry = balance.NewRegistry()
	for _, own := range add {
		own(a.Registry)
	}
	paths := slices.Concat(f.scripts, more)
	named := func(algorithm string) string {
		name, path := script.Path(algorithm)
		known := slices.ContainsFunc(paths, func(p string) bool { return p == path || filepath.Base(p) == path })
		if path != "" && !known {
			paths = append(paths, path)
		}
		return name
	}
	name := named(f.algorithm)
	shadows := strings.Split(f.shadow, ",")
	for i := range shadows {
		shadows[i] = named(shadows[i])
	}
	for _, p := range paths {
		s, err := script.Load(p)
		if err != nil {
			return a, err
		}
		a.Scripts = append(a.Scripts, s)
	}
	if err := script.Register(a.Registry, a.Scripts...); err != nil {
		return a, fmt.Errorf("--balance-script: %w", err)
	}
	if a.Chosen, err = a.Canonical(cmp.Or(name, balance.Name(""))); err != nil {
		return a, fmt.Errorf("--balance: %w", err)
	}
	if f.shadow != "" {
		if a.Shadows, err = shadow.Parse(a.Registry, strings.Join(shadows, ",")); err != nil {
			return a, fmt.Errorf("--shadow: %w", err)
		}
	}
	return a, nil
}
