// Package job runs the cells of experiments on a Kubernetes cluster, as Indexed Jobs: each index is a part of [experiment.Work].
//
// The archive of the work is in an immutable ConfigMap with the name of the Job, which owns it. A pod runs "nfqproxy experiment part" and
// writes its part to its log, where a [Cluster] reads it. So nothing is needed but what every cluster has, and no right but those to
// make Jobs and to read logs. A PersistentVolumeClaim may keep the cells, too.
//
// The state of a run is in the directory of results and in the Jobs: a run finds the Jobs of the same experiment and version by their
// label, and takes the results of their pods, whoever made them.
package job

import (
	"context"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// Options of a run on a cluster.
type Options struct {
	Config    *rest.Config // of the API server; nil: only [Cluster.Objects] works
	Namespace string
	Image     string // of nfqproxy, of the same version as this program
	Volume    string // a PersistentVolumeClaim that keeps the cells; empty: none
	// CPU and Memory are what a pod requests, and its limits.
	CPU, Memory resource.Quantity
	Parallel    int // pods at a time, at most
	Each        int // cells of a pod
	Version     string
	// Note reports what the user should know while he waits. It is called by one goroutine at a time.
	Note func(text string)
}

// Cluster runs cells on a cluster. It implements [experiment.Elsewhere], and is for one call at a time.
type Cluster struct {
	Options
	client kubernetes.Interface
	timing
	noted map[string]bool
}

// New returns a Cluster, without a request.
func New(o Options) (*Cluster, error) {
	if o.Each < 1 || o.Parallel < 1 {
		return nil, fmt.Errorf("%d runs in a pod, %d pods at a time: want 1 or more", o.Each, o.Parallel)
	}
	c := &Cluster{Options: o, timing: usual, noted: make(map[string]bool)}
	if o.Config == nil {
		return c, nil
	}
	var err error
	if c.client, err = kubernetes.NewForConfig(o.Config); err != nil {
		return nil, fmt.Errorf("client of API server %s: %w", o.Config.Host, err)
	}
	return c, nil
}

func (c *Cluster) note(format string, args ...any) { c.Note(fmt.Sprintf(format, args...)) }

// noteAs reports something once.
func (c *Cluster) noteAs(what, text string) {
	if !c.noted[what] {
		c.noted[what] = true
		c.Note(text)
	}
}

// maxParts bounds the indexes of a Job. More cells are in further Jobs, one after the other.
const maxParts = 10_000

// Run implements [experiment.Elsewhere]. It continues the Jobs that there are, and makes one for the other cells. If the context ends, Jobs
// go on, and the next run continues.
func (c *Cluster) Run(ctx context.Context, x *experiment.Experiment, cells []experiment.Key, done func(*experiment.Part) error) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	jobs, err := c.find(ctx, x)
	if err != nil {
		return err
	}
	wanted := make(map[experiment.Key]bool)
	for _, k := range cells {
		wanted[k] = true
	}
	r := &run{Cluster: c, experiment: x, wanted: wanted, done: done}
	covered := make(map[experiment.Key]bool)
	for _, j := range jobs {
		if err := r.adopt(ctx, j, covered); err != nil {
			return err
		}
	}
	var rest []experiment.Key
	for _, k := range cells {
		if wanted[k] && !covered[k] && len(rest) < maxParts*c.Each {
			rest = append(rest, k)
		}
	}
	if len(rest) > 0 {
		j, err := c.create(ctx, x, rest)
		if err != nil {
			return err
		}
		r.jobs = append(r.jobs, j)
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	r.remove(ctx)
	return nil
}

// number writes a number with its noun.
func number(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + more
}
