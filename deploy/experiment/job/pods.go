package job

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// pods are those of a Job in a phase, of some indexes or of all.
func (c *Cluster) pods(ctx context.Context, job string, phase corev1.PodPhase, of ...int) ([]corev1.Pod, error) {
	selector := batchv1.JobNameLabel + "=" + job
	if len(of) > 0 {
		var list []string
		for _, i := range of {
			list = append(list, strconv.Itoa(i))
		}
		selector += "," + batchv1.JobCompletionIndexAnnotation + " in (" + strings.Join(list, ",") + ")" // the label has the same name
	}
	const most = 500
	pods, err := c.client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, FieldSelector: "status.phase=" + string(phase), Limit: most})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

const maxLog = 16 << 20 // bytes that are read of a log

// log reads the log of a pod; lines: the last ones, 0: all.
func (c *Cluster) log(ctx context.Context, p *corev1.Pod, lines int64) ([]byte, error) {
	o := &corev1.PodLogOptions{Container: container}
	if lines > 0 {
		o.TailLines = &lines
	}
	stream, err := c.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, o).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return io.ReadAll(io.LimitReader(stream, maxLog))
}

// part reads the result of a pod.
func (c *Cluster) part(ctx context.Context, p *corev1.Pod) (*experiment.Part, error) {
	text, err := c.log(ctx, p, 0)
	if err != nil {
		return nil, err
	}
	part, err := experiment.DecodePart(text)
	if err != nil {
		return nil, fmt.Errorf("%w: it has %d bytes", err, len(text))
	}
	return part, nil
}

// failure describes the failure of a part.
func (c *Cluster) failure(ctx context.Context, j *job, index int) (string, error) {
	cells := j.work.Part(index)
	what := fmt.Sprintf("index %d", index)
	if len(cells) > 0 {
		what = cells[0].String()
		if len(cells) > 1 {
			what += " to " + cells[len(cells)-1].String()
		}
		what += fmt.Sprintf(" (index %d)", index)
	}
	pods, err := c.pods(ctx, j.name, corev1.PodFailed, index)
	if err != nil {
		return "", err
	}
	if len(pods) == 0 {
		return what + " failed, and its pods are gone", nil
	}
	p := slices.MaxFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	text := fmt.Sprintf("%s failed in pod %s on node %s: %s", what, p.Name, p.Spec.NodeName, reason(&p))
	const lines = 10
	if log, err := c.log(ctx, &p, lines); err == nil {
		for line := range strings.Lines(string(log)) {
			text += "\n  " + strings.TrimRight(line, "\n")
		}
	}
	return text, nil
}

// reason is why a pod has failed.
func reason(p *corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		switch t := s.State.Terminated; {
		case t == nil:
		case t.Reason == "OOMKilled":
			return "out of memory: give more with --memory"
		default:
			text := fmt.Sprintf("exit code %d", t.ExitCode)
			if t.Message != "" {
				text += " (" + t.Reason + ": " + firstLine(t.Message) + ")"
			}
			return text
		}
	}
	return strings.TrimRight(p.Status.Reason+": "+p.Status.Message, ": ")
}

// obstacle is why a pod does not start.
type obstacle struct {
	what, text string // what is the same for all pods with the same obstacle
	stuck      bool   // it stays until the Job is another one
}

// obstacleOf is the obstacle of a pod that is not running; false: there is none.
func obstacleOf(p *corev1.Pod) (obstacle, bool) {
	for _, s := range p.Status.ContainerStatuses {
		w := s.State.Waiting
		switch {
		case w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing":
		case strings.Contains(w.Reason, "Image"): // ErrImagePull and ImagePullBackOff alternate
			return obstacle{"image", fmt.Sprintf("node %s cannot pull the image %s (%s: %s): give one with --image", p.Spec.NodeName, s.Image, w.Reason, firstLine(w.Message)), true}, true
		default:
			return obstacle{w.Reason, fmt.Sprintf("node %s cannot start a pod: %s: %s", p.Spec.NodeName, w.Reason, firstLine(w.Message)), true}, true
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			text := "pods wait for a node: " + firstLine(c.Message)
			return obstacle{text, text, false}, true
		}
	}
	return obstacle{}, false
}

func firstLine(text string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return first
}
