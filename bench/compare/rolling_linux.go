package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/bench/traffic"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// A rolling update replaces the pods of one more service one by one, as a Deployment with maxSurge 1 and maxUnavailable 0
// does: a new pod is ready; an old one terminates; it is gone.
const (
	rolling        = "rolling update"
	rollingService = maxServices + 1
	// rollingPace is the time from one step to the next. kube-proxy waits a second between two syncs: ten steps begin in
	// ten different tenths of it.
	rollingPace = 700 * time.Millisecond
	rollingRate = 500 // new connections a second
	// rollingSlack is the load's time before the first step and after the last one.
	rollingSlack = 3 * time.Second
	maxReplicas  = 99 // with one more, what the EndpointSlice controller puts into one slice
)

// rollingContestants are those whose flow API tells how they follow.
var rollingContestants = []string{"nfqproxy", "iptables-nft-observed", "nftables-observed"}

// roll is how far a rolling update is: how many new pods were added, and how many old ones terminate or are gone, and are gone.
type roll struct{ added, terminating, gone int }

// update makes the slice of the service as of a step. Pods are numbered: the new ones follow the old ones.
func (o *objects) update(ctx context.Context, replicas int, r roll) error {
	s := o.slice(rollingService, everyEndpoint)
	s.Endpoints = nil
	for j := r.gone; j < replicas+r.added; j++ {
		ready, serving, terminating := j >= r.terminating, true, j < r.terminating
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{endpoint(rollingService, j).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		})
	}
	slices := o.cluster.Client().DiscoveryV1().EndpointSlices(namespace)
	_, err := slices.Update(ctx, s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		if _, err = o.cluster.Client().CoreV1().Services(namespace).Create(ctx, service(rollingService), metav1.CreateOptions{}); err == nil {
			_, err = slices.Create(ctx, s, metav1.CreateOptions{})
		}
	}
	return err
}

// endPod has a pod refuse connections, as one whose program ends when it is told to.
func (t *topology) endPod(ctx context.Context, pod netip.Addr) error {
	return t.pods.Do(func() error {
		nft := exec.CommandContext(ctx, "nft", "-f", "-")
		nft.Stdin = strings.NewReader("add table ip ended\nadd chain ip ended input { type filter hook input priority 0; }\n" +
			"add rule ip ended input ip daddr " + pod.String() + " meta l4proto tcp reject with tcp reset\n")
		if out, err := nft.CombinedOutput(); err != nil {
			return fmt.Errorf("end pod %s: %w: %s", pod, err, out)
		}
		return nil
	})
}

// change is one of an endpoint, as the flow API names both.
type change struct{ what, endpoint string }

// updated is what became of a change.
type updated struct {
	of observe.Change
	observe.EndpointChange
}

// roll measures a rolling update under load: from the API server's response to each change of an endpoint until the rules
// have it, until the first flow to a new pod, and until the last one to an old pod.
func (v *visit) roll(ctx context.Context) (err error) {
	steps := 3 * v.rolling
	side, err := startSide(v.client, sideSpec{Steady: &traffic.Steady{
		From: firstClient, Sources: maxClients, Time: 2*rollingSlack + time.Duration(steps)*rollingPace, PerSecond: rollingRate,
		TCP: []netip.AddrPort{netip.AddrPortFrom(traffic.Advance(firstService, rollingService), servicePort)},
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, side.Stop()) }()
	if err := side.Await(wordBegan); err != nil {
		return err
	}
	time.Sleep(rollingSlack)
	changed := make(map[change]time.Time)
	found := make(map[change]updated)
	pace := time.NewTicker(rollingPace)
	defer pace.Stop()
	var r roll
	for step := range steps {
		<-pace.C
		pod, what := endpoint(rollingService, step/3), observe.EndpointRemoved
		switch step % 3 {
		case 0:
			pod, what = endpoint(rollingService, v.rolling+r.added), observe.EndpointAdded
			r.added++
		case 1:
			what = observe.EndpointExcluded
			r.terminating++
		default:
			r.gone++
		}
		if err := v.objects.update(ctx, v.rolling, r); err != nil {
			return err
		}
		changed[change{what, netip.AddrPortFrom(pod, echoPort).String()}] = time.Now()
		if what == observe.EndpointExcluded {
			if err := v.endPod(ctx, pod); err != nil {
				return err
			}
		}
		// The history of a service has its last twenty changes.
		if step%6 == 5 {
			if err := v.findChanges(ctx, found); err != nil {
				return err
			}
		}
	}
	if err := side.Await(wordEnded); err != nil {
		return err
	}
	if err := v.findChanges(ctx, found); err != nil {
		return err
	}
	var counts []traffic.SteadyCount
	if err := side.Result(&counts); err != nil {
		return err
	}
	v.recordCount(rolling, "", counts[0])
	for c, at := range changed {
		if c.what == observe.EndpointRemoved { // it had no new flows before, either
			continue
		}
		u := found[c]
		note := func(event string, then *time.Time) {
			if then != nil {
				v.record(rolling, event, "ms", max(0, float64(then.Sub(at))/float64(time.Millisecond)))
			}
		}
		flow := func(event string, f *observe.ChangeFlow) {
			if f != nil {
				note(event, &f.Time)
			}
		}
		v.record(rolling, "changes", "", 1)
		if v.contestant.watched != nil {
			note(observe.Rules, u.Rules)
		} else {
			note(observe.Rules, u.of.InForce)
		}
		flow(observe.FirstFlow, u.EndpointChange.FirstFlow)
		flow(observe.LastFlow, u.LastFlow)
	}
	return nil
}

// findChanges takes over what the contestant's flow API tells of the changes of the service.
func (v *visit) findChanges(ctx context.Context, found map[change]updated) error {
	if v.contestant.watched == nil && !v.contestant.nfqproxy {
		return nil
	}
	a, err := client()
	if err != nil {
		return err
	}
	s, err := a.Services(ctx, observe.ServiceQuery{Service: namespace + "/" + objectName(rollingService), Changes: true})
	if err != nil {
		return err
	}
	if len(s.Services) != 1 {
		return fmt.Errorf("the flow API has %d service ports of the rolling update", len(s.Services))
	}
	for _, c := range s.Services[0].Changes {
		for _, e := range c.Endpoints {
			found[change{e.Change, e.Endpoint}] = updated{c, e}
		}
	}
	return nil
}

// reportRolling is the table of rolling updates.
func (s *samples) reportRolling(services int, contestants []contestant) string {
	var rows strings.Builder
	for _, c := range contestants {
		made := s.values(services, c.name, rolling, "made")
		if len(made) == 0 {
			continue
		}
		fmt.Fprintf(&rows, "| %s | %d |", c.name, len(s.values(services, c.name, rolling, "changes")))
		for _, event := range []string{observe.Rules, observe.FirstFlow, observe.LastFlow} {
			rows.WriteString(" " + s.delays(services, c.name, event, len(made)) + " |")
		}
		fmt.Fprintf(&rows, " %s | %s | %.0f |\n", s.figure(services, c.name, rolling, "failed"), s.figure(services, c.name, rolling, "delayed"), made[0])
	}
	if rows.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("\n### Rolling updates, at %d services: from the API server's response to a change, in ms\n\n"+
		"Median (lowest and highest median of a visit) / 95th / 99th percentile / maximum [number of values]. Connections: of one visit.\n\n"+
		"| | changes | rules | first flow | last flow | failed | delayed | of |\n|:--|--:|--:|--:|--:|--:|--:|--:|\n", services) + rows.String()
}

// delays describes how long after its change an event happened, in all visits.
func (s *samples) delays(services int, contestant, event string, visits int) string {
	var all, medians []int64 // in microseconds
	for round := range visits {
		var values []int64
		for _, v := range s.all {
			if v.services == services && v.contestant == contestant && v.measure == rolling && v.quantity == event && v.round == round {
				values = append(values, int64(v.value*1000))
			}
		}
		if slices.Sort(values); len(values) > 0 {
			medians = append(medians, stats.Percentile(values, 500))
		}
		all = append(all, values...)
	}
	if len(all) == 0 {
		return "–"
	}
	slices.Sort(all)
	ms := func(us int64) string { return round3(float64(us) / 1000) }
	return fmt.Sprintf("%s (%s–%s) / %s / %s / %s [%d]", ms(stats.Percentile(all, 500)), ms(slices.Min(medians)), ms(slices.Max(medians)),
		ms(stats.Percentile(all, 950)), ms(stats.Percentile(all, 990)), ms(stats.Percentile(all, 1000)), len(all))
}
