package netfilter

// chooser decides where the kernel would choose at random, or where the dump lacks the data.
type chooser interface {
	// coin returns true with the probability, which is above 0 and below 1.
	coin(p float64) bool
}

// Rand is a source of random numbers; math/rand/v2.Rand is one.
type Rand interface {
	// Float64 returns a number in [0, 1).
	Float64() float64
}

type drawing struct{ Rand }

func (d drawing) coin(p float64) bool { return d.Float64() < p }

// script follows the ways of a tree one after the other: each run repeats the earlier choices and
// takes yes at each new fork.
type script struct {
	forks    []fork
	position int
}

type fork struct {
	yes         bool
	probability float64 // of yes
}

func (s *script) coin(p float64) bool {
	if s.position == len(s.forks) {
		s.forks = append(s.forks, fork{true, p})
	}
	s.position++
	return s.forks[s.position-1].yes
}

// probability is that of the choices made.
func (s *script) probability() float64 {
	p := 1.0
	for _, f := range s.forks {
		if f.yes {
			p *= f.probability
		} else {
			p *= 1 - f.probability
		}
	}
	return p
}

// next starts the next way; false: there is none.
func (s *script) next() bool {
	for len(s.forks) > 0 && !s.forks[len(s.forks)-1].yes {
		s.forks = s.forks[:len(s.forks)-1]
	}
	s.position = 0
	if len(s.forks) == 0 {
		return false
	}
	s.forks[len(s.forks)-1].yes = false
	return true
}
