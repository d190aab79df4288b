package traffic

import (
	"reflect"
	"testing"
	"time"
)

// TestSecondChance: under random no flow is refused at three endpoints; each with a second chance is late by the time of the
// client's retransmission. lc prefers the endpoint that refuses, because it has no connections: also when the flow comes
// again, and another endpoint is about to end.
func TestSecondChance(t *testing.T) {
	c := quiet(Event{At: 2 * time.Second, RollingUpdate: &RollingUpdate{Lifecycle{Ready: time.Second, Grace: 5 * time.Second}, time.Second}})
	c.Cluster.Propagation = &Distribution{Kind: uniform, Mean: 200 * time.Millisecond}
	c.Workload.GiveUp = 10 * time.Second
	for _, algorithm := range []string{"random", "lc"} {
		without, with := run(t, c, algorithm, 1), run(t, c, algorithm+SecondChance, 1)
		if without.Refused == 0 || without.SecondChances != 0 {
			t.Errorf("%s: %d refused, %d second chances", algorithm, without.Refused, without.SecondChances)
		}
		most := map[string]int{"random": 0, "lc": without.Refused / 4}[algorithm]
		if with.Refused > most || with.SecondChances == 0 || with.Connect.N()+with.Refused != with.Flows {
			t.Errorf("%s: %d refused, %d second chances, %d of %d flows answered", algorithm, with.Refused, with.SecondChances, with.Connect.N(), with.Flows)
		}
		intime := 1000 - 1000*with.SecondChances/with.Connect.N() - 1 // permille
		if last, others := with.Connect.Percentile(1000), with.Connect.Percentile(intime); last < int64(time.Second) || others >= int64(time.Second) {
			t.Errorf("%s: the last flow is answered after %v, %d permille up to %v", algorithm, time.Duration(last), intime, time.Duration(others))
		}
		if again := run(t, c, algorithm+SecondChance, 1); !reflect.DeepEqual(with, again) {
			t.Errorf("%s: two runs differ", algorithm)
		}
	}
}

// TestSecondChanceFlush: a flush while clients wait to send their SYN again leaves the endpoints' lists right: all are empty in the end.
func TestSecondChanceFlush(t *testing.T) {
	for _, algorithm := range []string{"random", "ewma", "sed"} {
		for seed := range uint64(5) {
			s := newSimulation(busy(), seed, Options{})
			if err := s.simulate(algorithm + SecondChance); err != nil {
				t.Fatal(err)
			}
			for id := range s.servers {
				if e := &s.servers[id]; e.busy != 0 || e.open() != 0 {
					t.Errorf("%s, seed %d: %d workers of server %d are busy, and it has %d connections", algorithm, seed, e.busy, id, e.open())
				}
			}
		}
	}
}

// TestSecondChanceElsewhere: without another endpoint a refusal is passed on, and one that is gone is not waited for
// twice.
func TestSecondChanceElsewhere(t *testing.T) {
	c := quiet(Event{At: time.Second, RollingUpdate: &RollingUpdate{Lifecycle{Listens: 10 * time.Second}, 10 * time.Second}})
	c.Cluster.Services[0].Endpoints = c.Cluster.Services[0].Endpoints[:1]
	c.Duration = 5 * time.Second
	r := run(t, c, "random"+SecondChance, 1)
	if r.Refused == 0 {
		t.Errorf("result %+v", r)
	}
	c = quiet(Event{At: time.Second, NodeLoss: &NodeLoss{Nodes: 2, Noticed: 15 * time.Second}})
	without, with := run(t, c, "random", 1), run(t, c, "random"+SecondChance, 1)
	if without.Unanswered == 0 || with.Unanswered*4 > without.Unanswered || with.SecondChances == 0 {
		t.Errorf("unanswered: %d without, %d with %d second chances", without.Unanswered, with.Unanswered, with.SecondChances)
	}
}
