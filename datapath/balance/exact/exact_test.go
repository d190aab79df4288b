package exact

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
		x := (r.Float64() - 0.5) * 1400
		if !near(Exp(x), math.Exp(x)) {
			t.Fatalf("Exp(%v) = %v, want %v", x, Exp(x), math.Exp(x))
		}
	}
}

func TestSpecial(t *testing.T) {
	for _, tt := range []struct{ got, want float64 }{
		{Exp(0), 1}, {Exp(710), math.Inf(1)}, {Exp(-746), 0}, {Exp(math.Inf(-1)), 0}, {Exp(math.Inf(1)), math.Inf(1)},
	} {
		if tt.got != tt.want {
			t.Errorf("got %v, want %v", tt.got, tt.want)
		}
	}
	if !math.IsNaN(Exp(math.NaN())) {
		t.Error("want NaN")
	}
}

// TestBits: the results have these bits on all machines. GOAMD64=v3 fuses products and sums, GOARCH=386
// has no assembly.
func TestBits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	h := fnv.New64a()
	for range 100_000 {
		_ = binary.Write(h, binary.LittleEndian, Exp(40*(r.Float64()-0.5)))
	}
	if got, want := h.Sum64(), uint64(0x3c661ece5f37d232); got != want {
		t.Errorf("hash %#x, want %#x", got, want)
	}
}

// TestExponents: of powers of 2.
func TestExponents(t *testing.T) {
	for k := -1000; k <= 1023; k++ {
		if x := float64(k) * math.Ln2; !near(Exp(x), math.Exp(x)) {
			t.Errorf("Exp(%v) = %v, want %v", x, Exp(x), math.Exp(x))
		}
	}
}
