package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// detection is a way of detecting pods, and the lines of the rules that use it.
type detection struct {
	how     string       // as in a rule: "-s 10.244.0.0/16"
	podCIDR netip.Prefix // of pods; invalid: they are behind a device
	device  string       // its name, or with prefix the beginning of their names
	prefix  bool
	lines   []int
}

// detections are those of all rules, by kind.
type detections struct {
	all []*detection
	by  map[string]*detection
}

// detect records that the rule in a line detects pods.
func (d *detections) detect(line int, how detection) {
	same := d.by[how.how]
	if same == nil {
		same = &how
		d.by[how.how] = same
		d.all = append(d.all, same)
	}
	same.lines = append(same.lines, line)
}

// settleDetection sets the detection of pods: that of most rules is right.
func (r *gathered) settleDetection() {
	slices.SortStableFunc(r.all, func(a, b *detection) int { return cmp.Compare(len(b.lines), len(a.lines)) })
	for i, d := range r.all {
		p := &r.node.Proxy
		switch {
		case i > 0:
			r.problem(fmt.Sprintf("pods are detected by %s, but in most rules by %s", d.how, r.all[0].how), d.lines...)
		case d.podCIDR.IsValid():
			p.PodCIDR = d.podCIDR
		case d.prefix:
			p.InterfacePrefix = d.device
		default:
			p.Bridge = d.device
		}
	}
}
