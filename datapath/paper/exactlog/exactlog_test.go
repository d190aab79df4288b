package exactlog

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"
)

// near reports whether two numbers differ by at most two units in the last place.
func near(a, b float64) bool {
	return a == b || math.Abs(a-b) <= 2*math.Abs(math.Nextafter(b, math.Inf(1))-b)
}

func TestNearMath(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		x := math.Ldexp(r.Float64(), r.IntN(200)-100)
		if x > 0 && !near(Log(x), math.Log(x)) {
			t.Fatalf("Log(%v) = %v, want %v", x, Log(x), math.Log(x))
		}
	}
}

func TestSpecial(t *testing.T) {
	for _, tt := range []struct{ got, want float64 }{{Log(1), 0}, {Log(0), math.Inf(-1)}, {Log(math.Inf(1)), math.Inf(1)}} {
		if tt.got != tt.want {
			t.Errorf("got %v, want %v", tt.got, tt.want)
		}
	}
	if !math.IsNaN(Log(-1)) || !math.IsNaN(Log(math.NaN())) {
		t.Error("want NaN")
	}
}

// TestBits: the results have these bits on all machines. GOAMD64=v3 fuses products and sums, GOARCH=386
// has no assembly.
func TestBits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	h := fnv.New64a()
	for range 100_000 {
		_ = binary.Write(h, binary.LittleEndian, Log(r.Float64()+1e-300))
	}
	if got, want := h.Sum64(), uint64(0xa430f6d5f95304a3); got != want {
		t.Errorf("hash %#x, want %#x", got, want)
	}
}

// TestExponents: at all exponents. (math.Log of amd64 is wrong of subnormal numbers.)
func TestExponents(t *testing.T) {
	for k := -1074; k <= 1023; k++ {
		if x, want := math.Ldexp(1, k), float64(k)*math.Ln2; !near(Log(x), want) {
			t.Errorf("Log(%v) = %v, want %v", x, Log(x), want)
		}
	}
}
