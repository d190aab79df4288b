package theory

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s: %v, want %v ± %v", what, got, want, tolerance)
	}
}

// TestErlangC: published values, of Gross and Harris, Fundamentals of Queueing Theory, and of tables of the delay formula: 10 agents
// with 8 erlangs.
func TestErlangC(t *testing.T) {
	for _, tt := range []struct {
		servers       int
		offered, want float64
	}{{1, 0.9, 0.9}, {2, 1, 1.0 / 3}, {2, 1.5, 0.6429}, {5, 4, 0.5541}, {10, 8, 0.4092}} {
		near(t, "Erlang C", ErlangC(tt.servers, tt.offered/float64(tt.servers)), tt.want, 0.00005)
	}
	if p := ErlangC(100_000, 0.99); p < 0 || p > 0.01 {
		t.Errorf("100,000 servers: %v", p)
	}
}

func TestMMc(t *testing.T) {
	for _, load := range []float64{0.1, 0.5, 0.9, 0.99} {
		near(t, "the time of M/M/1", MMcTime(1, load)*(1-load), 1, 1e-12)
		near(t, "the number of M/M/1", MMcNumber(1, load), load/(1-load), 1e-9)
	}
	// Two servers, in closed form: 1/(1-load^2).
	near(t, "the time of M/M/2", MMcTime(2, 0.8), 1/(1-0.64), 1e-12)
}

// TestSupermarketTime: the column "prediction" of Mitzenmacher 2001, table 1.
func TestSupermarketTime(t *testing.T) {
	loads := []float64{0.50, 0.70, 0.80, 0.90, 0.95, 0.99}
	for d, predictions := range map[int][]float64{
		2: {1.2657, 1.6145, 1.9474, 2.6141, 3.3830, 5.4320},
		3: {1.1252, 1.3568, 1.5809, 2.0279, 2.5351, 3.8578},
		5: {1.0312, 1.1681, 1.3289, 1.6329, 1.9888, 2.9017},
	} {
		for i, want := range predictions {
			near(t, "supermarket", SupermarketTime(d, loads[i]), want, 0.00006)
		}
	}
	near(t, "one choice", SupermarketTime(1, 0.9), 10, 1e-9)
}

// TestStaleTime: with new information it is the choice of d, without a choice M/M/1, and with very old information the choice of two is
// worse than none: all queues with the same board get up to twice the rate for a long time.
func TestStaleTime(t *testing.T) {
	for _, load := range []float64{0.5, 0.9} {
		near(t, "new information", StaleTime(2, load, 0.01), SupermarketTime(2, load), 0.01*SupermarketTime(2, load))
		near(t, "no choice", StaleTime(1, load, 1), MMcTime(1, load), 1e-9)
		before := 0.0
		for _, age := range []float64{0.1, 1, 4, 16} {
			now := StaleTime(2, load, age)
			if now <= before {
				t.Errorf("load %v: %v with age %v, less than with newer information", load, now, age)
			}
			before = now
			t.Logf("load %v, age %v: two %v, three %v", load, age, now, StaleTime(3, load, age))
		}
	}
	if two := StaleTime(2, 0.5, 40); two < MMcTime(1, 0.5) {
		t.Errorf("age 40: %v", two)
	}
}

// TestIdleQueueTime: with no servers for a dispatcher all customers are sent anywhere, and with very many hardly one waits. Between
// these, the balance of a busy server's customers holds: load is the share of busy servers.
func TestIdleQueueTime(t *testing.T) {
	near(t, "no list", IdleQueueTime(0, 0.9), MMcTime(1, 0.9), 1e-12)
	near(t, "long lists", IdleQueueTime(1e9, 0.9), 1, 1e-6)
	near(t, "ten servers", IdleQueueTime(10, 0.9), 1/(1-0.45), 1e-12) // one server in a list on average: it is known half of the time
}

func TestRelaxation(t *testing.T) {
	near(t, "relaxation", Relaxation(0.81), 100, 1e-9)
}

// TestBinTails: the predictions of Mitzenmacher 1999, table 1, for as many balls as bins, and with one choice the Poisson distribution.
func TestBinTails(t *testing.T) {
	for d, want := range map[int][]float64{2: {1, 0.7616, 0.2295, 0.0089}, 3: {1, 0.8231, 0.1765, 0.0005}} {
		for i, share := range BinTails(d, 1)[:4] {
			near(t, "tail", share, want[i], 0.00006)
		}
	}
	p, tail := math.Exp(-3), 1.0
	for i, share := range BinTails(1, 3)[:20] {
		near(t, "Poisson", share, tail, 1e-9)
		tail -= p
		p *= 3 / float64(i+1)
	}
}

// TestFullestBin: with one choice, Gonnet's asymptotic value, the inverse of the gamma function less 3/2, which oscillates by some
// tenths around the mean.
func TestFullestBin(t *testing.T) {
	for _, n := range []int{1000, 100_000, 10_000_000} {
		inverse := 1.5
		for g, _ := math.Lgamma(inverse); g < math.Log(float64(n)); g, _ = math.Lgamma(inverse) {
			inverse += 0.001
		}
		near(t, "fullest", FullestBin(n, 1, 1), inverse-1.5, 0.3)
	}
	// A million bins: Mitzenmacher's shares give about six bins with four balls and none with five.
	near(t, "fullest of two", FullestBin(1_000_000, 2, 1), 4, 0.05)
}

func TestRing(t *testing.T) {
	near(t, "ring", RingMaxOverMean(4), 25.0/12, 1e-12)
}

// TestMaglev: tables 1 and 2 of the paper: three backends, seven slots, and B1 goes.
func TestMaglev(t *testing.T) {
	offsets, skips := []int{3, 0, 3}, []int{4, 2, 1}
	if got := Maglev(7, offsets, skips); !slices.Equal(got, []int{1, 0, 1, 0, 2, 2, 0}) {
		t.Errorf("before: %v", got)
	}
	if got := Maglev(7, []int{3, 3}, []int{4, 1}); !slices.Equal(got, []int{0, 0, 0, 0, 1, 1, 1}) {
		t.Errorf("after: %v", got)
	}
	if got := MaglevDisruption(251, 1, 1); got != 0 {
		t.Errorf("one backend: %v", got)
	}
	small, large := MaglevDisruption(251, 20, 1), MaglevDisruption(65537, 20, 1)
	if small < 2*large || large <= 0 || small > 0.5 {
		t.Errorf("disruption %v with 251 slots, %v with 65537", small, large)
	}
	t.Logf("disruption %v with 251 slots, %v with 4093, %v with 65537", small, MaglevDisruption(4093, 20, 1), large)
}

// TestMM1Late: with cancel the share is a balance of work too: without a loss the endpoint would be busy for the load. The content of the dam
// has the density load(1-load)exp(-(1-load)v)/W, and W = 1-load·x normalizes it.
func TestMM1Late(t *testing.T) {
	near(t, "late after the mean time", MM1Late(0.5, 2, false), math.Exp(-1), 1e-12)
	for _, load := range []float64{0.3, 0.9} {
		const d, steps = 2.0, 100_000
		x := math.Exp(-(1 - load) * d)
		w := 1 - load*x
		want := (1 - load) / w * math.Exp(-d) // the dam is empty, and the work is longer
		for i := range steps {
			v := (float64(i) + 0.5) * d / steps
			want += load * (1 - load) * math.Exp(-(1-load)*v) / w * math.Exp(-(d - v)) * d / steps
		}
		near(t, "late with cancel", MM1Late(load, d, true), want, 1e-8)
	}
}

// TestSelection: in simulations, each dispatcher's customers and its first server are drawn.
func TestSelection(t *testing.T) {
	const servers, customers, runs = 20, 300, 4000
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 3, 40} {
		squares := [2]float64{}
		for range runs {
			var drawn, turned [servers]float64
			at := make([]int, n)
			for i := range at {
				at[i] = r.IntN(servers)
			}
			for range customers {
				drawn[r.IntN(servers)]++
				i := r.IntN(n)
				turned[at[i]]++
				at[i] = (at[i] + 1) % servers
			}
			for k := range servers {
				squares[0] += drawn[k] * drawn[k]
				squares[1] += turned[k] * turned[k]
			}
		}
		for i, got := range []float64{DrawsJain(customers, servers), RotationsJain(customers, servers, n)} {
			want := customers * customers / (servers * squares[i] / runs)
			near(t, "Jain", got, want, 0.05*(1-want)+1e-9)
		}
	}
	sum, mean := 0.0, 0.0
	binomial(5000, 3, func(m int, p float64) { sum, mean = sum+p, mean+p*float64(m) })
	near(t, "binomial", sum, 1, 1e-9)
	near(t, "binomial mean", mean, 5000.0/3, 1e-6)
}
