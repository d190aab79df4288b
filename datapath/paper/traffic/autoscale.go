package traffic

import (
	"cmp"
	"math"
	"time"
)

// Autoscale changes the number of a service's endpoints from then on, by the rule of Kubernetes' HorizontalPodAutoscaler with its default
// behavior (autoscaling/v2, Kubernetes 1.36). Endpoints start and end as those of a rolling update.
type Autoscale struct {
	Lifecycle `json:",inline"`
	// Target is the share of their workers that endpoints should have busy.
	Target float64 `json:"target"`
	// Min and Max bound the number of endpoints. Min 0: 1.
	Min int `json:"min"`
	Max int `json:"max"`
	// Interval is the time from one decision to the next; 0: 15 seconds. The metric is the mean of 15 samples in it.
	Interval time.Duration `json:"interval"`
	// Tolerance is the relative difference from Target that changes nothing; 0: 0.1.
	Tolerance float64 `json:"tolerance"`
	// Stabilization is for how long an earlier, larger number holds; nil: 5 minutes.
	Stabilization *time.Duration `json:"stabilization"`
}

const (
	defaultInterval      = 15 * time.Second // kube-controller-manager --horizontal-pod-autoscaler-sync-period
	defaultTolerance     = 0.1              // --horizontal-pod-autoscaler-tolerance
	defaultStabilization = 5 * time.Minute  // --horizontal-pod-autoscaler-downscale-stabilization
	samples              = 15               // in an interval
)

// scaler is an autoscaler at work.
type scaler struct {
	*Autoscale
	number        uint32 // of the Event
	service       int32
	sampled       int
	busy, workers int       // sums of the samples, of endpoints that are ready
	earlier       []desired // within the stabilization
}

// desired is a number of endpoints that was computed.
type desired struct {
	at int64
	n  int
}

func (a *Autoscale) stabilization() int64 {
	if a.Stabilization == nil {
		return int64(defaultStabilization)
	}
	return int64(*a.Stabilization)
}

// autoscale starts an autoscaler.
func (s *simulation) autoscale(ev *Autoscale, number uint32) {
	s.scalers = append(s.scalers, scaler{Autoscale: ev, number: number, service: s.service(ev.Service)})
	s.sampleLater(int32(len(s.scalers) - 1))
}

func (s *simulation) sampleLater(id int32) {
	a := &s.scalers[id]
	s.queue.add(s.now+int64(cmp.Or(a.Interval, defaultInterval))/samples, sampled, id, a.number)
}

// sampleLoad reads how busy a service is, and decides after the last sample of an interval.
func (s *simulation) sampleLoad(id int32) {
	a := &s.scalers[id]
	s.sampleLater(id)
	pods := pods{}
	for _, id := range s.members[a.service] {
		switch e := &s.servers[id]; {
		case e.ending:
		case !e.listed:
			pods.unready++
		case !e.present:
			pods.missing++
		default:
			pods.ready++
			a.busy += int(e.busy)
		}
	}
	a.workers += pods.ready * s.c.Cluster.Services[a.service].Concurrency
	if a.sampled++; a.sampled < samples {
		return
	}
	current := len(s.running(a.service))
	n := a.decide(current, pods, s.now)
	a.sampled, a.busy, a.workers = 0, 0, 0
	if n != current {
		s.scaleTo(a.service, n, a.number)
	}
}

// decide is the number of endpoints for the next interval.
func (a *scaler) decide(current int, p pods, now int64) int {
	least := cmp.Or(a.Min, 1)
	if current < least || current > a.Max {
		return max(min(current, a.Max), least)
	}
	n := current
	if p.ready > 0 && a.workers > 0 {
		n = p.desired(current, float64(a.busy)/float64(a.workers), a.Target, cmp.Or(a.Tolerance, defaultTolerance))
	}
	kept := a.earlier[:0]
	largest := n
	for _, d := range a.earlier {
		if d.at > now-a.stabilization() {
			kept, largest = append(kept, d), max(largest, d.n)
		}
	}
	a.earlier = append(kept, desired{now, n})
	if n < current {
		n = min(largest, current)
	}
	return max(min(n, a.Max, max(2*current, current+4)), least) // 100 % or 4 Pods, whichever is more
}

// pods counts the endpoints of a service. Those that are missing have no metrics.
type pods struct{ ready, unready, missing int }

// desired is the number of endpoints for a mean utilization of those that are ready: ceil(current · utilization / target), as
// ReplicaCalculator.GetResourceReplicas of Kubernetes computes it. An endpoint that is not ready or missing counts as idle when there should be
// more, and one that is missing as busy when there should be fewer.
func (p pods) desired(current int, utilization, target, tolerance float64) int {
	ratio, counted := utilization/target, p.ready
	total := utilization * float64(p.ready)
	switch {
	case ratio > 1:
		counted += p.unready + p.missing
	case ratio < 1:
		counted += p.missing
		total += float64(p.missing) * max(1, target)
	}
	again := total / float64(counted) / target
	if math.Abs(again-1) <= tolerance || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return current
	}
	const rounding = 1e-9 // of a product that is a whole number
	n := int(math.Ceil(float64(again*float64(counted)) - rounding))
	if again < 1 && n > current || again > 1 && n < current {
		return current
	}
	return n
}
