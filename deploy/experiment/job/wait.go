package job

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// timing is how long a run waits.
type timing struct {
	period   time.Duration // between two looks at a Job
	patience time.Duration // with what may pass by itself: a registry or an API server that is away
}

var usual = timing{time.Second, time.Minute}

// run is one call of [Cluster.Run].
type run struct {
	*Cluster
	experiment *experiment.Experiment
	wanted     map[experiment.Key]bool // whose results are not here
	done       func(*experiment.Part) error
	jobs       []*job
	failing    time.Time // since when the API server or a kubelet does not answer; zero: it does
}

// job is a Job with results for a run.
type job struct {
	name   string
	work   *experiment.Work
	open   map[int]bool // the parts whose results are wanted and not here
	ended  bool         // there are no more results
	whole  bool         // nobody wants more of it
	failed map[int]bool // the parts whose failure was reported
	first  string       // failure

	progress int32     // pods that have ended
	stuck    time.Time // since when no pod can start; zero: one can
	idle     time.Time // since when there is no pod; zero: there is one
}

func newJob(name string, work *experiment.Work) *job {
	return &job{name: name, work: work, open: make(map[int]bool), failed: make(map[int]bool)}
}

// adopt takes the results of a Job that was there. Cells that it will have are covered.
func (r *run) adopt(ctx context.Context, found *found, covered map[experiment.Key]bool) error {
	j := newJob(found.object.Name, found.work)
	for i := range j.work.Parts() {
		for _, k := range j.work.Part(i) {
			if r.wanted[k] && !covered[k] {
				j.open[i] = true
			}
		}
	}
	if isFinished(found.object) {
		j.ended, j.whole = true, true
		r.jobs = append(r.jobs, j)
		err := r.collect(ctx, j, found.object)
		if _, ok := errors.AsType[passing](err); ok && ctx.Err() == nil {
			r.note("Job %s/%s: %v: these runs are run again", r.Namespace, j.name, err)
			return nil
		}
		return err
	}
	if len(j.open) == 0 {
		return nil
	}
	for i := range j.open {
		for _, k := range j.work.Part(i) {
			covered[k] = true
		}
	}
	r.jobs = append(r.jobs, j)
	r.note("Job %s/%s continues: %d of %s are done", r.Namespace, j.name, found.object.Status.Succeeded, number(j.work.Parts(), "pod", "pods"))
	if want := r.pod(j.name); !slices.Equal(settingsOf(&want), settingsOf(&found.object.Spec.Template.Spec)) {
		r.note("it keeps its image, resources and volume; to start over with others: kubectl --namespace %s delete job %s", r.Namespace, j.name)
	}
	return nil
}

// settingsOf are what flags set in a pod.
func settingsOf(p *corev1.PodSpec) (all []string) {
	for i := range p.Containers {
		c := &p.Containers[i]
		all = append(all, c.Image, c.Resources.Limits.Cpu().String(), c.Resources.Limits.Memory().String())
	}
	for i := range p.Volumes {
		if claim := p.Volumes[i].PersistentVolumeClaim; claim != nil {
			all = append(all, claim.ClaimName)
		}
	}
	return all
}

// passing is an error of something that may pass by itself.
type passing struct{ error }

func (e passing) Unwrap() error { return e.error }

// wait waits until the results of all Jobs are here.
func (r *run) wait(ctx context.Context) error {
	tick := time.NewTicker(r.period)
	defer tick.Stop()
	for {
		var failed error
		waits := false
		for _, j := range r.jobs {
			if j.ended {
				continue
			}
			err := r.look(ctx, j)
			if ctx.Err() != nil {
				return r.leave(ctx)
			}
			if _, ok := errors.AsType[passing](err); err != nil && !ok {
				return err
			}
			if err != nil {
				failed = fmt.Errorf("the Job %s/%s: %w", r.Namespace, j.name, err)
			}
			waits = waits || !j.ended
		}
		switch {
		case failed == nil:
			r.failing = time.Time{}
		case r.failing.IsZero():
			r.failing = time.Now()
		case time.Since(r.failing) > r.patience:
			return fmt.Errorf("%w; the same command continues", failed)
		}
		if !waits {
			return nil
		}
		select {
		case <-ctx.Done():
			return r.leave(ctx)
		case <-tick.C:
		}
	}
}

// leave ends the run, and says which Jobs go on.
func (r *run) leave(ctx context.Context) error {
	for _, j := range r.jobs {
		if !j.ended {
			r.note("Job %s/%s keeps running; the same command continues with it", r.Namespace, j.name)
		}
	}
	return context.Cause(ctx)
}

// look reads the new results of a Job.
func (r *run) look(ctx context.Context, j *job) error {
	object, err := r.client.BatchV1().Jobs(r.Namespace).Get(ctx, j.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the Job %s/%s was deleted: the same command creates a new one for the missing runs", r.Namespace, j.name)
	case apierrors.IsForbidden(err):
		return err
	case err != nil:
		return passing{err}
	}
	if err := r.collect(ctx, j, object); err != nil {
		return err
	}
	for i := range indexes(valueOf(object.Status.FailedIndexes)) {
		if j.failed[i] || !j.open[i] {
			continue
		}
		text, err := r.failure(ctx, j, i)
		if err != nil {
			return passing{err}
		}
		j.failed[i] = true
		if j.first == "" {
			j.first = text
		}
		r.note("%s", text)
	}
	switch {
	case len(j.open) == 0:
		j.ended, j.whole = true, len(indexes(object.Status.CompletedIndexes)) == j.work.Parts()
		return nil
	case isFinished(object) && len(j.failed) > 0:
		return r.incomplete(j, object)
	case isFinished(object):
		// A node was drained, for example, before the logs were read.
		j.ended, j.whole = true, true
		r.note("the results of %s are gone with their pods: these runs are run again", number(len(j.open), "pod", "pods"))
		return nil
	}
	return r.explain(ctx, j, object)
}

// incomplete is the error of a Job that has ended with failures.
func (r *run) incomplete(j *job, object *batchv1.Job) error {
	why := ""
	for _, c := range object.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			why = " (" + c.Reason + ")"
		}
	}
	return fmt.Errorf("the Job %s/%s has ended%s without the results of %d of %s; the same command runs them again: %s", r.Namespace, j.name, why, len(j.open), number(j.work.Parts(), "pod", "pods"), j.first)
}

// isFinished reports whether a Job has ended.
func isFinished(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// indexes are the indexes of a list as the status of a Job has it: 1,3-5,7.
func indexes(list string) map[int]bool {
	all := make(map[int]bool)
	for one := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(one, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || from < 0 || to > maxParts {
			continue
		}
		for i := from; i <= to; i++ {
			all[i] = true
		}
	}
	return all
}

func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// collect reads the results of pods that have ended, those that can be read.
func (r *run) collect(ctx context.Context, j *job, object *batchv1.Job) error {
	var ready []int
	var failed error
	away := make(map[string]bool) // nodes
	completed := indexes(object.Status.CompletedIndexes)
	for _, i := range slices.Sorted(maps.Keys(j.open)) {
		if completed[i] {
			ready = append(ready, i)
		}
	}
	const most = 50 // indexes of a request
	for some := range slices.Chunk(ready, most) {
		pods, err := r.pods(ctx, j.name, corev1.PodSucceeded, some...)
		if err != nil {
			return passing{err}
		}
		for i := range pods {
			p := &pods[i]
			index, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
			if err != nil || !j.open[index] || away[p.Spec.NodeName] {
				continue
			}
			part, err := r.part(ctx, p)
			if err != nil {
				failed = errors.Join(failed, passing{fmt.Errorf("pod %s on node %s: %w", p.Name, p.Spec.NodeName, err)})
				away[p.Spec.NodeName] = !errors.Is(err, experiment.ErrNoPart)
				continue
			}
			if err := part.Check(r.experiment, r.Version, j.work.Part(index)); err != nil {
				return fmt.Errorf("the Job %s/%s: pod %s: %w", r.Namespace, j.name, p.Name, err)
			}
			if err := r.done(part); err != nil {
				return err
			}
			delete(j.open, index)
			for _, c := range part.Cells {
				delete(r.wanted, c.Key)
			}
		}
	}
	return failed
}

// explain reports why a Job does not make progress. It is an error if it never will.
func (r *run) explain(ctx context.Context, j *job, object *batchv1.Job) error {
	s := &object.Status
	if ended := s.Succeeded + s.Failed; ended != j.progress {
		j.progress, j.stuck = ended, time.Time{}
	}
	if object.Spec.Suspend != nil && *object.Spec.Suspend {
		r.noteAs("suspended "+j.name, fmt.Sprintf("Job %s/%s is suspended", r.Namespace, j.name))
		return nil
	}
	if s.Active == 0 {
		return r.explainIdle(ctx, j)
	}
	j.idle = time.Time{}
	ready := valueOf(s.Ready)
	if ready >= s.Active {
		j.stuck = time.Time{}
		return nil
	}
	pods, err := r.pods(ctx, j.name, corev1.PodPending)
	if err != nil {
		return passing{err}
	}
	why := ""
	for i := range pods {
		o, is := obstacleOf(&pods[i])
		if !is {
			ready++ // soon
			continue
		}
		r.noteAs(o.what, o.text)
		if o.stuck {
			why = o.text
		}
	}
	switch {
	case why == "" || ready > 0:
		j.stuck = time.Time{}
	case j.stuck.IsZero():
		j.stuck = time.Now()
	case time.Since(j.stuck) > r.patience:
		return errors.Join(fmt.Errorf("no pod of Job %s/%s can start, so it was deleted: %s", r.Namespace, j.name, why), r.delete(context.WithoutCancel(ctx), j.name))
	}
	return nil
}

// explainIdle reports why a Job has no pods.
func (r *run) explainIdle(ctx context.Context, j *job) error {
	if j.idle.IsZero() {
		j.idle = time.Now()
	}
	const share = 6 // of the patience: ten seconds
	if time.Since(j.idle) < r.patience/share {
		return nil
	}
	// Without the right to read events there is no explanation.
	events, err := r.client.CoreV1().Events(r.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.kind=Job,involvedObject.name=" + j.name})
	if err == nil && len(events.Items) > 0 {
		last := &events.Items[len(events.Items)-1]
		r.noteAs("idle "+j.name, fmt.Sprintf("Job %s/%s has no pods: %s: %s", r.Namespace, j.name, last.Reason, last.Message))
	}
	return nil
}
