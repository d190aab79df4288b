package engine

import "testing"

func TestHasCapability(t *testing.T) {
	status := func(effective string) string {
		return "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t" + effective + "\nCapBnd:\tffffffffffffffff\n"
	}
	for text, want := range map[string]bool{
		status("000001ffffffffff"): true,
		status("0000000000001000"): true, // CAP_NET_ADMIN alone
		status("000001ffffffefff"): false,
		status("0000000000000000"): false,
		status("nonsense"):         false,
		"":                         false,
	} {
		if got := hasCapability(text, capNetAdmin); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
