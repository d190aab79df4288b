package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// rights are what a run needs in its namespace: verbs of a resource with its group.
var rights = []struct {
	group, resource, subresource string
	verbs                        []string
}{
	{"batch", "jobs", "", []string{"create", "delete", "get", "list"}},
	{"", "configmaps", "", []string{"create", "get"}},
	{"", "pods", "", []string{"list"}},
	{"", "pods", "log", []string{"get"}},
}

// prepare checks what can be known before there is a Job.
func (c *Cluster) prepare(ctx context.Context) error {
	var missing []string
	for _, r := range rights {
		for _, verb := range r.verbs {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.group, Resource: r.resource, Subresource: r.subresource, Namespace: c.Namespace, Verb: verb},
			}}
			got, err := c.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return c.failed(ctx, "check permissions", err)
			}
			if !got.Status.Allowed {
				missing = append(missing, strings.TrimRight(verb+" "+r.resource+"/"+r.subresource, "/"))
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("permissions are missing in namespace %s: %s (docs/how-to/run-on-a-cluster.md has a Role)", c.Namespace, strings.Join(missing, ", "))
	}
	if c.Volume == "" {
		return nil
	}
	_, err := c.client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, c.Volume, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		return nil // the scheduler sees it
	}
	return c.failed(ctx, "volume", err)
}

// failed adds to an error of the API server what it is about.
func (c *Cluster) failed(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("API server %s: %s: %w", c.Config.Host, what, err)
}

// found is a Job of the experiment that is there.
type found struct {
	object *batchv1.Job
	work   *experiment.Work
}

// find returns the Jobs of the experiment, the oldest first.
func (c *Cluster) find(ctx context.Context, x *experiment.Experiment) (all []*found, err error) {
	list, err := c.client.BatchV1().Jobs(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: Label + "=" + c.identity(x)})
	if err != nil {
		return nil, c.failed(ctx, "Jobs", err)
	}
	slices.SortFunc(list.Items, func(a, b batchv1.Job) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for i := range list.Items {
		object := &list.Items[i]
		if object.DeletionTimestamp != nil {
			continue
		}
		m, err := c.client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, object.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, c.failed(ctx, "ConfigMap of Job "+object.Name, err)
		}
		work, err := experiment.ReadWork(m.BinaryData[archive])
		switch {
		case err == nil:
			all = append(all, &found{object, work})
		case time.Since(object.CreationTimestamp.Time) > c.patience: // another command may be about to make it
			// The command that made it was killed before it made the ConfigMap: its pods wait for ever.
			c.note("Job %s/%s has no ConfigMap with its work, so it is deleted", c.Namespace, object.Name)
			if err := c.delete(ctx, object.Name); err != nil {
				return nil, c.failed(ctx, "Job "+object.Name, err)
			}
		}
	}
	return all, nil
}

// create makes a Job. Both of its objects are there, or none.
func (c *Cluster) create(ctx context.Context, x *experiment.Experiment, cells []experiment.Key) (*job, error) {
	m, object, err := c.Objects(x, cells)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	if object, err = c.client.BatchV1().Jobs(c.Namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, c.failed(ctx, "create a Job", err)
	}
	m.OwnerReferences = []metav1.OwnerReference{{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: object.Name, UID: object.UID}}
	if _, err := c.client.CoreV1().ConfigMaps(c.Namespace).Create(ctx, m, metav1.CreateOptions{}); err != nil {
		return nil, errors.Join(c.failed(ctx, "create a ConfigMap", err), c.delete(ctx, object.Name))
	}
	j := newJob(object.Name, &experiment.Work{Version: c.Version, Each: c.Each, Cells: cells})
	for i := range j.work.Parts() {
		j.open[i] = true
	}
	c.note("Job %s/%s: %s in %s, %d at a time", c.Namespace, j.name, number(len(cells), "run", "runs"), number(j.work.Parts(), "pod", "pods"), *object.Spec.Parallelism)
	return j, nil
}

// delete deletes a Job with its pods and its ConfigMap. One that is not there is no error.
func (c *Cluster) delete(ctx context.Context, name string) error {
	err := c.client.BatchV1().Jobs(c.Namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// remove deletes the Jobs whose results are here.
func (r *run) remove(ctx context.Context) {
	for _, j := range r.jobs {
		if !j.whole {
			continue // it has others, which a run of more seeds may want
		}
		if err := r.delete(ctx, j.name); err != nil {
			r.note("the results of Job %s/%s are here, but it cannot be deleted: %v", r.Namespace, j.name, err)
		}
	}
}
