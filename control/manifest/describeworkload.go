package manifest

import (
	"regexp"
	"strconv"
)

var (
	templateField = regexp.MustCompile(`^(Labels|Annotations|Service Account|Init Containers|Containers|Volumes|Node-Selectors|Tolerations):`)
	wanted        = regexp.MustCompile(`(\d+) desired`)
	running       = regexp.MustCompile(`(\d+) (?:available|Running)`)
)

func (d *described) isWorkload() bool { return d.has("Pod Template") }

// workload makes an object of what describe prints of one with a template of Pods: its labels, and the ports of its containers, of which
// the names are not shown.
func (d *described) workload(metadata map[string]any) []document {
	t := new(described)
	for _, line := range d.linesOf("Pod Template") {
		if m := templateField.FindStringSubmatch(line); m != nil {
			t.order, t.lines = append(t.order, m[1]), append(t.lines, []string{line[len(m[0]):]})
		} else if last := len(t.lines) - 1; last >= 0 {
			t.lines[last] = append(t.lines[last], line)
		}
	}
	apiVersion, kind := "apps/v1", "ReplicaSet"
	switch {
	case d.has("StrategyType"):
		kind = "Deployment"
	case d.has("Update Strategy"):
		kind = "StatefulSet"
	case d.has("Desired Number of Nodes Scheduled"):
		kind = "DaemonSet"
	case d.has("Parallelism"):
		apiVersion, kind = "batch/v1", "Job"
	}
	pod, spec, status := map[string]any{}, map[string]any{}, map[string]any{}
	if pod["containers"], _ = t.containers("Containers"); pod["containers"] == nil {
		return []document{failed(errDescribed)}
	}
	spec["template"] = map[string]any{"metadata": map[string]any{"labels": t.pairs("Labels"), "annotations": map[string]any{NotShown: "kubectl describe"}}, "spec": pod}
	if m := wanted.FindStringSubmatch(d.field("Replicas")); m != nil {
		spec["replicas"], _ = strconv.ParseInt(m[1], 10, 32)
	}
	if m := running.FindStringSubmatch(d.field("Replicas") + d.field("Pods Status")); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 32)
		status["readyReplicas"], status["numberReady"] = n, n
	}
	return []document{made(map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata, "spec": spec, "status": status})}
}
